// Calls to a running planner.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_PLANNER_CLIENT_H_
#define RELIBRA_PLANNER_SERVICE_CLI_PLANNER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner_service/trace/trace.h"
#include "relibra/v1/planner.grpc.pb.h"

namespace relibra::cli {

// Which pass of which step.
struct PassName {
  std::string job;
  uint32_t step = 0;
  uint32_t policy_version = 0;
  std::string pass = "update";
  std::string ep_group;  // empty: the job's only one
};

// One connection, without encryption. Errors are the planner's own, starting with its address.
class PlannerClient {
 public:
  // `address`: HOST:PORT. Connects with the first call. timeout_seconds: of each call.
  PlannerClient(const std::string& address, double timeout_seconds);

  // The state of one job, or of all (empty).
  absl::StatusOr<v1::GetStatusResponse> GetStatus(const std::string& job);

  // The loads that a pass was planned from, with the model's layer numbers and top-k.
  // INTERNAL when the planner sends less, or other, than the shape it names.
  absl::StatusOr<CountTrace> GetLoads(const PassName& pass);

 private:
  absl::Status StatusOf(const grpc::Status& status) const;

  const std::string address_;
  const double timeout_seconds_;
  const std::unique_ptr<v1::Planner::Stub> stub_;
};

// Joins the messages of one GetLoads stream into loads.
class LoadsAssembler {
 public:
  // INTERNAL when the shape differs from the message before, or entries do not come in order or do
  // not fit.
  absl::Status Add(const v1::LoadCounts& message);
  // INTERNAL when entries are missing.
  absl::StatusOr<Loads> Finish() &&;

 private:
  LoadShape shape_;
  std::vector<uint32_t> counts_;
  bool begun_ = false;
};

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_PLANNER_CLIENT_H_

// An agent's connection to the planner. The planner may die and come back at any time: plans that
// came completely stay, the stream is taken up again, reports that cannot be delivered are lost.
#ifndef RELIBRA_WORKER_AGENT_PLANNER_CLIENT_H_
#define RELIBRA_WORKER_AGENT_PLANNER_CLIENT_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "relibra/v1/planner.grpc.pb.h"
#include "worker_agent/group_shape.h"
#include "worker_agent/plan_source.h"

namespace relibra::agent {

struct PlannerClientOptions {
  std::string planner;  // HOST:PORT
  std::string job;
  std::string ep_group = "ep0";
  int rank = 0;
  GroupShape shape = {};
  // First and longest wait before the stream of plans is opened again.
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(5);
  // How long a report may take.
  absl::Duration report_timeout = absl::Seconds(5);
};

// Thread-safe. Has two threads of its own: one watches plans, one delivers reports.
class PlannerClient : public PlanSource {
 public:
  // Does not connect yet.
  explicit PlannerClient(PlannerClientOptions options);
  ~PlannerClient() override;

  // Makes this rank known and returns all ranks of the group once they are. Tries again, with
  // back-off, while the planner cannot be reached or does not know the job yet.
  absl::StatusOr<std::vector<v1::AgentInfo>> JoinGroup(const v1::AgentInfo& self,
                                                       absl::Time deadline);

  // Starts to watch plans, from this step on. Once.
  void Watch(uint32_t from_step);

  absl::StatusOr<std::shared_ptr<const Plan>> WaitForPlan(const StepId& id,
                                                          absl::Time deadline) override;
  void Report(const v1::StepReport& report) override;

  // The planner's stub, for calls that are the orchestrator's.
  v1::Planner::StubInterface& stub() { return *stub_; }

 private:
  using Key = std::tuple<uint32_t, uint32_t, std::string>;  // step, policy version, pass
  using MaybePlan = absl::StatusOr<std::shared_ptr<const Plan>>;

  void WatchLoop();
  void ReadStream(grpc::ClientReaderInterface<v1::PlanUpdate>& stream);
  void Keep(const v1::Plan& message);
  void ReportLoop();
  // Sleeps, unless the client is told to stop; false then.
  bool SleepFor(absl::Duration duration);

  const PlannerClientOptions options_;
  const std::unique_ptr<v1::Planner::StubInterface> stub_;

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t from_step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, MaybePlan> plans_ ABSL_GUARDED_BY(mutex_);
  // Why the stream broke the last time.
  std::string stream_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::StepReport> reports_ ABSL_GUARDED_BY(mutex_);
  // The calls in flight, to be cancelled at the end.
  grpc::ClientContext* watch_call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* report_call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread watcher_;
  std::thread reporter_;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_PLANNER_CLIENT_H_

// A planner in this process on a real loopback port, and what tests say to it.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_SERVER_TEST_PLANNER_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_SERVER_TEST_PLANNER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner_service/server/planner_server.h"
#include "relibra/v1/planner.grpc.pb.h"

namespace relibra::server {

// Two nodes of two GPUs, eight experts, top-2, MoE layers 1 and 2 of a model.
v1::JobSpec SmallJob(const std::string& name);

v1::StepKey Key(const std::string& job, uint32_t step, uint32_t policy_version = 0);

// A record of u8 ids: rows[token][layer][choice], flattened.
v1::RoutingRecord Record(const std::string& sequence, uint32_t token_offset,
                         const std::vector<uint8_t>& ids, uint32_t num_layers = 2,
                         uint32_t top_k = 2);

// Loads of one micro-batch in which source rank s sends base + s + e pairs to expert e.
v1::LoadCounts SmallCounts(uint32_t base, uint32_t num_micro_batches = 1);

class TestPlanner {
 public:
  // Listens at free loopback ports, whatever the options say.
  explicit TestPlanner(ServerOptions options = {}, bool with_metrics = false);

  v1::Planner::Stub& stub() { return *stub_; }
  PlannerServer& server() { return *server_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

  grpc::Status Register(const v1::JobSpec& spec, v1::RegisterJobResponse* response = nullptr);
  // Streams one message.
  grpc::Status Send(const v1::StreamRoutingRequest& request,
                    v1::StreamRoutingResponse* response = nullptr);
  grpc::Status Send(const v1::StepKey& key, const std::vector<v1::RoutingRecord>& records,
                    v1::StreamRoutingResponse* response = nullptr);
  grpc::Status Plan(const v1::PlanStepRequest& request, v1::PlanStepResponse* response = nullptr);
  grpc::Status PlanCounts(const v1::StepKey& key, const v1::LoadCounts& counts,
                          v1::PlanStepResponse* response = nullptr);
  // All messages of a plan in one.
  grpc::Status GetPlan(const v1::GetPlanRequest& request, v1::Plan* plan);
  v1::JobStatus Status(const std::string& job);

 private:
  std::unique_ptr<PlannerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Planner::Stub> stub_;
};

// Reads a whole plan off a stream of updates; false when the stream ends first.
bool ReadPlan(grpc::ClientReader<v1::PlanUpdate>& reader, v1::Plan& plan);

// Tokens that the plan's splits place for (layer, micro-batch, source rank, expert), over all
// instances.
uint64_t SplitTokensOf(const v1::Plan& plan, int layer, int micro_batch, uint32_t source_rank,
                       uint32_t expert);

}  // namespace relibra::server

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_SERVER_TEST_PLANNER_H_

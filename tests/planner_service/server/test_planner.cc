#include "tests/planner_service/server/test_planner.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra::server {

v1::JobSpec SmallJob(const std::string& name) {
  v1::JobSpec spec;
  spec.set_job(name);
  spec.mutable_model()->add_moe_layer_ids(1);
  spec.mutable_model()->add_moe_layer_ids(2);
  spec.mutable_model()->set_num_experts(8);
  spec.mutable_model()->set_top_k(2);
  spec.mutable_model()->set_weight_bytes(100);
  spec.mutable_model()->set_gradient_bytes(200);
  spec.mutable_model()->set_optimizer_bytes(300);
  spec.mutable_topology()->set_nodes(2);
  spec.mutable_topology()->set_gpus_per_node(2);
  spec.mutable_topology()->set_replica_slots(1);
  return spec;
}

v1::StepKey Key(const std::string& job, uint32_t step, uint32_t policy_version) {
  v1::StepKey key;
  key.set_job(job);
  key.set_step(step);
  key.set_policy_version(policy_version);
  return key;
}

v1::RoutingRecord Record(const std::string& sequence, uint32_t token_offset,
                         const std::vector<uint8_t>& ids, uint32_t num_layers, uint32_t top_k) {
  v1::RoutingRecord record;
  record.set_sequence_id(sequence);
  record.set_token_offset(token_offset);
  record.mutable_ids()->set_id_type(v1::ID_TYPE_UINT8);
  record.mutable_ids()->set_num_layers(num_layers);
  record.mutable_ids()->set_top_k(top_k);
  record.mutable_ids()->set_num_tokens(ids.size() / (num_layers * top_k));
  record.mutable_ids()->set_ids(std::string(ids.begin(), ids.end()));
  return record;
}

v1::LoadCounts SmallCounts(uint32_t base, uint32_t num_micro_batches) {
  v1::LoadCounts counts;
  counts.set_num_micro_batches(num_micro_batches);
  counts.set_num_layers(2);
  counts.set_num_source_ranks(4);
  counts.set_num_experts(8);
  for (uint32_t entry = 0; entry < num_micro_batches * 2; ++entry) {
    v1::LayerLoads& loads = *counts.add_entries();
    for (uint32_t s = 0; s < 4; ++s) {
      for (uint32_t e = 0; e < 8; ++e) loads.add_counts(base + s + e);
    }
  }
  return counts;
}

TestPlanner::TestPlanner(ServerOptions options, bool with_metrics) {
  options.listen = "127.0.0.1:0";
  options.metrics_address = with_metrics ? "127.0.0.1:0" : "";
  spdlog::set_level(spdlog::level::off);
  auto server = PlannerServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  grpc::ChannelArguments arguments;
  // A channel of its own for each planner of a test.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                       grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::Planner::NewStub(channel_);
}

grpc::Status TestPlanner::Register(const v1::JobSpec& spec, v1::RegisterJobResponse* response) {
  grpc::ClientContext call;
  v1::RegisterJobRequest request;
  *request.mutable_spec() = spec;
  v1::RegisterJobResponse unused;
  return stub_->RegisterJob(&call, request, response == nullptr ? &unused : response);
}

grpc::Status TestPlanner::Send(const v1::StreamRoutingRequest& request,
                               v1::StreamRoutingResponse* response) {
  grpc::ClientContext call;
  v1::StreamRoutingResponse unused;
  auto writer = stub_->StreamRouting(&call, response == nullptr ? &unused : response);
  writer->Write(request);
  writer->WritesDone();
  return writer->Finish();
}

grpc::Status TestPlanner::Send(const v1::StepKey& key,
                               const std::vector<v1::RoutingRecord>& records,
                               v1::StreamRoutingResponse* response) {
  v1::StreamRoutingRequest request;
  *request.mutable_key() = key;
  for (const v1::RoutingRecord& record : records) *request.add_records() = record;
  return Send(request, response);
}

grpc::Status TestPlanner::Plan(const v1::PlanStepRequest& request, v1::PlanStepResponse* response) {
  grpc::ClientContext call;
  v1::PlanStepResponse unused;
  return stub_->PlanStep(&call, request, response == nullptr ? &unused : response);
}

grpc::Status TestPlanner::PlanCounts(const v1::StepKey& key, const v1::LoadCounts& counts,
                                     v1::PlanStepResponse* response) {
  v1::PlanStepRequest request;
  *request.mutable_key() = key;
  *request.mutable_counts() = counts;
  return Plan(request, response);
}

grpc::Status TestPlanner::GetPlan(const v1::GetPlanRequest& request, v1::Plan* plan) {
  grpc::ClientContext call;
  auto reader = stub_->GetPlan(&call, request);
  const bool whole = ReadPlan(*reader, *plan);
  v1::PlanUpdate more;
  EXPECT_FALSE(reader->Read(&more)) << "after `complete`: " << more.ShortDebugString();
  grpc::Status status = reader->Finish();
  EXPECT_EQ(whole, status.ok());
  return status;
}

v1::JobStatus TestPlanner::Status(const std::string& job) {
  grpc::ClientContext call;
  v1::GetStatusRequest request;
  request.set_job(job);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&call, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.jobs_size() == 1 ? response.jobs(0) : v1::JobStatus();
}

bool ReadPlan(grpc::ClientReader<v1::PlanUpdate>& reader, v1::Plan& plan) {
  v1::PlanUpdate update;
  plan.Clear();
  while (reader.Read(&update)) {
    switch (update.update_case()) {
      case v1::PlanUpdate::kHeader:
        plan = update.header();
        break;
      case v1::PlanUpdate::kLayer:
        *plan.add_layers() = update.layer();
        break;
      case v1::PlanUpdate::kComplete:
        EXPECT_EQ(update.complete().num_layers(), plan.layers_size());
        EXPECT_EQ(update.complete().digest(), plan.digest());
        return true;
      default:
        ADD_FAILURE() << "an empty update";
    }
  }
  return false;
}

uint64_t SplitTokensOf(const v1::Plan& plan, int layer, int micro_batch, uint32_t source_rank,
                       uint32_t expert) {
  uint64_t tokens = 0;
  for (const v1::SplitColumns& columns :
       plan.layers(layer).micro_batches(micro_batch).split_columns()) {
    if (columns.source_rank() != source_rank) continue;
    for (int i = 0; i < columns.experts_size(); ++i) {
      if (columns.experts(i) == expert) tokens += columns.tokens(i);
    }
  }
  return tokens;
}

}  // namespace relibra::server

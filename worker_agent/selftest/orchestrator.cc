#include "worker_agent/selftest/orchestrator.h"

#include <grpcpp/grpcpp.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker_agent/backoff.h"

namespace relibra::agent::selftest {
namespace {

absl::Status FromGrpc(const grpc::Status& status, const std::string& what) {
  if (status.ok()) return absl::OkStatus();
  // gRPC's codes are Abseil's.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, ": ", status.error_message()));
}

}  // namespace

v1::JobSpec Orchestrator::Spec() const {
  const Scenario& s = scenario_;
  const uint64_t parameters = uint64_t{3} * s.hidden * s.intermediate;
  v1::JobSpec spec;
  spec.set_job(job_);
  v1::Model& model = *spec.mutable_model();
  for (int l = 0; l < s.layers; ++l) model.add_moe_layer_ids(l);
  model.set_num_experts(s.experts);
  model.set_top_k(s.top_k);
  model.set_weight_bytes(parameters * sizeof(float));
  model.set_gradient_bytes(parameters * sizeof(float));
  model.set_optimizer_bytes(parameters * sizeof(float));
  model.set_flops_per_token(2 * parameters);
  model.set_token_bytes(s.hidden * sizeof(float));
  spec.mutable_topology()->set_nodes(s.nodes);
  spec.mutable_topology()->set_gpus_per_node(s.gpus_per_node);
  spec.mutable_topology()->set_replica_slots(s.replica_slots);
  spec.set_layer_axis(v1::LAYER_AXIS_MOE_LAYERS);
  spec.set_id_type(v1::ID_TYPE_INT16);
  return spec;
}

absl::Status Orchestrator::Register(absl::Time deadline) {
  Backoff backoff(absl::Milliseconds(50), absl::Seconds(1), scenario_.seed);
  v1::RegisterJobRequest request;
  *request.mutable_spec() = Spec();
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    v1::RegisterJobResponse response;
    const grpc::Status status = stub_.RegisterJob(&context, request, &response);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || absl::Now() >= deadline) {
      return FromGrpc(status, absl::StrCat("registering job '", job_, "'"));
    }
    absl::Notification never;
    never.WaitForNotificationWithTimeout(backoff.Next());
  }
}

std::string Orchestrator::SequenceId(int micro_batch, int rank, int sequence) const {
  return absl::StrCat("r", rank, "-m", micro_batch, "-s", sequence);
}

absl::Status Orchestrator::StreamRoutes(int step, int rank, absl::Time deadline) {
  const Scenario& s = scenario_;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::StreamRoutingResponse response;
  const auto stream = stub_.StreamRouting(&context, &response);
  const size_t row = static_cast<size_t>(s.layers) * s.top_k;
  for (int m = 0; m < s.micro_batches; ++m) {
    const std::vector<int32_t> routes = Routes(s, step, m, rank);
    v1::StreamRoutingRequest request;
    request.mutable_key()->set_job(job_);
    request.mutable_key()->set_step(step);
    for (int q = 0; q < s.sequences; ++q) {
      v1::RoutingRecord& record = *request.add_records();
      record.set_sequence_id(SequenceId(m, rank, q));
      record.set_sequence_tokens(s.sequence_tokens);
      v1::RoutedIds& ids = *record.mutable_ids();
      ids.set_id_type(v1::ID_TYPE_INT16);
      ids.set_num_tokens(s.sequence_tokens);
      ids.set_num_layers(s.layers);
      ids.set_top_k(s.top_k);
      const auto first = routes.begin() + static_cast<ptrdiff_t>(q * s.sequence_tokens * row);
      const std::vector<int16_t> narrow(first,
                                        first + static_cast<ptrdiff_t>(s.sequence_tokens * row));
      ids.set_ids(std::string(reinterpret_cast<const char*>(narrow.data()), narrow.size() * 2));
    }
    if (!stream->Write(request)) break;
  }
  stream->WritesDone();
  return FromGrpc(stream->Finish(), absl::StrCat("streaming the routes of step ", step));
}

absl::Status Orchestrator::PlanStep(int step, absl::Time deadline) {
  const Scenario& s = scenario_;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::PlanStepRequest request;
  request.mutable_key()->set_job(job_);
  request.mutable_key()->set_step(step);
  request.set_pass("update");
  v1::Composition& composition = *request.mutable_composition();
  composition.set_num_micro_batches(s.micro_batches);
  for (int m = 0; m < s.micro_batches; ++m) {
    for (int r = 0; r < s.ranks(); ++r) {
      for (int q = 0; q < s.sequences; ++q) {
        v1::SequencePlacement& placement = *composition.add_sequences();
        placement.set_sequence_id(SequenceId(m, r, q));
        placement.set_micro_batch(m);
        placement.set_source_rank(r);
      }
    }
  }
  v1::PlanStepResponse response;
  return FromGrpc(stub_.PlanStep(&context, request, &response),
                  absl::StrCat("planning step ", step));
}

}  // namespace relibra::agent::selftest

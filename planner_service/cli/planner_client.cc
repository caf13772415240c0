#include "planner_service/cli/planner_client.h"

#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"

namespace relibra::cli {
namespace {

void SetDeadline(double seconds, grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
}

bool Fits(uint32_t size) { return size >= 1 && size <= std::numeric_limits<int>::max(); }

// The model's own numbers of the layers of one EP group.
std::vector<uint32_t> LayerIdsOf(const v1::JobSpec& spec, const std::string& ep_group) {
  for (const v1::EpGroup& group : spec.ep_groups()) {
    const bool meant = ep_group.empty() ? spec.ep_groups_size() == 1 : group.name() == ep_group;
    if (meant && group.layer_ids_size() > 0) {
      return {group.layer_ids().begin(), group.layer_ids().end()};
    }
  }
  return {spec.model().moe_layer_ids().begin(), spec.model().moe_layer_ids().end()};
}

}  // namespace

PlannerClient::PlannerClient(const std::string& address, double timeout_seconds)
    : address_(address),
      timeout_seconds_(timeout_seconds),
      stub_(
          v1::Planner::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

absl::Status PlannerClient::StatusOf(const grpc::Status& status) const {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(address_, ": ", status.error_message()));
}

absl::StatusOr<v1::GetStatusResponse> PlannerClient::GetStatus(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(timeout_seconds_, context);
  v1::GetStatusRequest request;
  request.set_job(job);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, request, &response);
  if (!status.ok()) return StatusOf(status);
  return response;
}

absl::StatusOr<CountTrace> PlannerClient::GetLoads(const PassName& pass) {
  const absl::StatusOr<v1::GetStatusResponse> job = GetStatus(pass.job);
  if (!job.ok()) return job.status();
  if (job->jobs_size() != 1) {
    return absl::NotFoundError(absl::StrCat(address_, ": no job \"", pass.job, "\""));
  }
  v1::GetLoadsRequest request;
  request.mutable_key()->set_job(pass.job);
  request.mutable_key()->set_step(pass.step);
  request.mutable_key()->set_policy_version(pass.policy_version);
  request.set_pass(pass.pass);
  request.set_ep_group(pass.ep_group);
  grpc::ClientContext context;
  SetDeadline(timeout_seconds_, context);
  const auto stream = stub_->GetLoads(&context, request);
  LoadsAssembler assembler;
  absl::Status assembled;
  for (v1::LoadCounts message; assembled.ok() && stream->Read(&message);) {
    assembled = assembler.Add(message);
  }
  if (!assembled.ok()) context.TryCancel();
  const grpc::Status status = stream->Finish();
  if (!assembled.ok()) {
    return absl::Status(assembled.code(), absl::StrCat(address_, ": ", assembled.message()));
  }
  if (!status.ok()) return StatusOf(status);
  absl::StatusOr<Loads> loads = std::move(assembler).Finish();
  if (!loads.ok()) {
    return absl::Status(loads.status().code(),
                        absl::StrCat(address_, ": ", loads.status().message()));
  }
  CountTrace trace{.loads = *std::move(loads),
                   .layer_ids = LayerIdsOf(job->jobs(0).spec(), pass.ep_group),
                   .top_k = static_cast<int>(job->jobs(0).spec().model().top_k()),
                   .unrouted = {}};
  if (trace.layer_ids.size() != static_cast<size_t>(trace.loads.shape().layers)) {
    return absl::InternalError(absl::StrCat(address_, ": loads of ", trace.loads.shape().layers,
                                            " layers, but the group has ", trace.layer_ids.size()));
  }
  return trace;
}

absl::Status LoadsAssembler::Add(const v1::LoadCounts& message) {
  for (const auto& [field, size] : {std::pair{"num_micro_batches", message.num_micro_batches()},
                                    {"num_layers", message.num_layers()},
                                    {"num_source_ranks", message.num_source_ranks()},
                                    {"num_experts", message.num_experts()}}) {
    if (!Fits(size)) {
      return absl::InternalError(absl::StrCat("loads: ", field, ": got ", size));
    }
  }
  const LoadShape shape{.micro_batches = static_cast<int>(message.num_micro_batches()),
                        .layers = static_cast<int>(message.num_layers()),
                        .sources = static_cast<int>(message.num_source_ranks()),
                        .experts = static_cast<int>(message.num_experts())};
  if (begun_ && !(shape == shape_)) {
    return absl::InternalError("loads: the shape changes between messages");
  }
  shape_ = shape;
  begun_ = true;
  const size_t entry_size = size_t{1} * shape.sources * shape.experts;
  const size_t entries = size_t{1} * shape.micro_batches * shape.layers;
  const size_t next_entry = counts_.size() / entry_size;
  if (message.first_entry() != next_entry) {
    return absl::InternalError(
        absl::StrCat("loads: first_entry: expected ", next_entry, ", got ", message.first_entry()));
  }
  for (int i = 0; i < message.entries_size(); ++i) {
    const auto& counts = message.entries(i).counts();
    if (next_entry + i >= entries || static_cast<size_t>(counts.size()) != entry_size) {
      return absl::InternalError(absl::StrCat("loads: entry ", next_entry + i, ": expected ",
                                              entry_size, " counts in one of ", entries,
                                              " entries, got ", counts.size()));
    }
    counts_.insert(counts_.end(), counts.begin(), counts.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<Loads> LoadsAssembler::Finish() && {
  if (!begun_) return absl::InternalError("loads: the planner sent none");
  absl::StatusOr<Loads> loads = Loads::FromCounts(shape_, std::move(counts_));
  if (!loads.ok()) return absl::InternalError(loads.status().message());
  return loads;
}

}  // namespace relibra::cli

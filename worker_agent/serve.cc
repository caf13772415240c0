#include "worker_agent/serve.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker_agent/backoff.h"
#include "worker_agent/planner_client.h"
#include "worker_agent/session.h"
#include "worker_agent/transport/ucx.h"

namespace relibra::agent {
namespace {

// The job as the planner knows it; tries again while the planner or the job is not there yet.
absl::StatusOr<v1::JobSpec> FindJob(const ServeOptions& options, absl::Time deadline) {
  const auto stub = v1::Planner::NewStub(
      grpc::CreateChannel(options.planner, grpc::InsecureChannelCredentials()));
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(5), options.rank);
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    v1::GetStatusRequest request;
    request.set_job(options.job);
    v1::GetStatusResponse response;
    const grpc::Status status = stub->GetStatus(&context, request, &response);
    if (status.ok() && response.jobs_size() == 1) return response.jobs(0).spec();
    const absl::Duration wait = backoff.Next();
    if (absl::Now() + wait >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "job '", options.job, "' at ", options.planner, ": ", status.error_message()));
    }
    absl::Notification never;
    never.WaitForNotificationWithTimeout(wait);
  }
}

absl::StatusOr<GroupShape> ShapeOf(const v1::JobSpec& spec, const std::string& ep_group) {
  GroupShape shape{.nodes = static_cast<int>(spec.topology().nodes()),
                   .gpus_per_node = static_cast<int>(spec.topology().gpus_per_node()),
                   .replica_slots = static_cast<int>(spec.topology().replica_slots()),
                   .experts = static_cast<int>(spec.model().num_experts())};
  shape.layer_ids.assign(spec.model().moe_layer_ids().begin(), spec.model().moe_layer_ids().end());
  bool found = spec.ep_groups().empty();
  for (const v1::EpGroup& group : spec.ep_groups()) {
    if (group.name() != ep_group) continue;
    found = true;
    if (group.layer_ids_size() > 0) {
      shape.layer_ids.assign(group.layer_ids().begin(), group.layer_ids().end());
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat("the job has no EP group '", ep_group, "'"));
  if (absl::Status s = Validate(shape); !s.ok()) return s;
  return shape;
}

// Buffers of the sizes that the job names, in whole floats.
std::vector<BufferSpec> BuffersOf(const v1::Model& model) {
  const auto floats = [](uint64_t bytes) { return std::max<uint64_t>(bytes / 4 * 4, 4); };
  return {
      {"weights", FloatType::kFp32, floats(model.weight_bytes()), BufferRole::kWeight},
      {"optimizer", FloatType::kFp32, floats(model.optimizer_bytes()), BufferRole::kOptimizerState},
      {"gradient", FloatType::kFp32, floats(model.gradient_bytes()), BufferRole::kGradient}};
}

absl::Status FollowStep(Agent& agent, const StepId& id, bool& applied) {
  auto start = agent.BeginStep(id);
  if (!start.ok()) return start.status();
  applied = start->applied;
  const int layers = agent.store().shape().layers();
  for (int m = 0; m < start->micro_batches; ++m) {
    for (int l = 0; l < layers; ++l) {
      if (absl::Status s = agent.Prefetch(l, m); !s.ok()) return s;
    }
    for (int l = 0; l < layers; ++l) {
      if (absl::Status s = agent.Wait(l, m); !s.ok()) return s;
    }
    for (int l = layers - 1; l >= 0; --l) {
      if (absl::Status s = agent.ReduceGradients(l, m); !s.ok()) return s;
    }
  }
  if (absl::Status s = agent.EndStep({}); !s.ok()) return s;
  if (applied) {
    const v1::StepReport& report = agent.report();
    spdlog::info(
        "step {}: {} homes moved ({} here, {} bytes in {:.3f} s), {} bridges, {} bytes of "
        "replicas, {} bytes of gradients",
        id.step, start->moves, start->moves_in, report.moved_bytes(), report.move_seconds(),
        start->bridges, report.replica_bytes(), report.gradient_bytes());
  }
  return absl::OkStatus();
}

absl::Status Serve(const ServeOptions& options, const std::atomic<bool>& stop) {
  const absl::Time deadline = absl::Now() + options.join_timeout;
  auto spec = FindJob(options, deadline);
  if (!spec.ok()) return spec.status();
  auto shape = ShapeOf(*spec, options.ep_group);
  if (!shape.ok()) return shape.status();
  auto store = ExpertStore::Create(*shape, options.rank, BuffersOf(spec->model()));
  if (!store.ok()) return store.status();
  (*store)->AllocateMissing();
  auto transport =
      transport::CreateUcxTransport({.rank = options.rank,
                                     .size = shape->ranks(),
                                     .transports = options.transports,
                                     .net_devices = options.net_devices,
                                     .peer_error_handling = options.peer_error_handling});
  if (!transport.ok()) return transport.status();
  const PlannerClientOptions group{.planner = options.planner,
                                   .job = options.job,
                                   .ep_group = options.ep_group,
                                   .rank = options.rank,
                                   .shape = *shape};
  auto session = Session::Join(group, std::make_unique<PlannerClient>(group), *std::move(transport),
                               *std::move(store), Placement::Linear(*shape), options.agent,
                               options.from_step, deadline);
  if (!session.ok()) return session.status();
  spdlog::info("rank {} of {} of job '{}' follows plans from step {}", options.rank, shape->ranks(),
               options.job, options.from_step);

  StepId id{.step = options.from_step, .pass = options.pass};
  uint32_t followed = 0;
  while (!stop && (options.steps == 0 || followed < options.steps)) {
    bool applied = false;
    if (absl::Status s = FollowStep((*session)->agent(), id, applied); !s.ok()) return s;
    if (!applied) continue;
    ++id.step;
    ++followed;
  }
  return absl::OkStatus();
}

}  // namespace

int RunServe(const ServeOptions& options, const std::atomic<bool>& stop) {
  const absl::Status status = Serve(options, stop);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return 1;
}

}  // namespace relibra::agent

#include "planner_service/server/metrics.h"

#include <grpcpp/support/status_code_enum.h>

#include "planner_service/server/version.h"

namespace relibra::server {
namespace {

// Not "job": that is Prometheus's own label for what it scrapes.
constexpr char kJobLabel[] = "training_job";

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;

const Histogram::BucketBoundaries& Seconds() {
  static const auto& boundaries =
      *new Histogram::BucketBoundaries{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};
  return boundaries;
}

absl::string_view CodeName(int code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    default:
      return "INTERNAL";
  }
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      records_(BuildCounter()
                   .Name("relibra_records_total")
                   .Help("Routing records accepted, repeated ones not counted.")
                   .Register(*registry_)),
      repeated_records_(BuildCounter()
                            .Name("relibra_repeated_records_total")
                            .Help("Routing records that were known already (retries).")
                            .Register(*registry_)),
      record_bytes_(BuildCounter()
                        .Name("relibra_record_bytes_total")
                        .Help("Bytes of routing messages received.")
                        .Register(*registry_)),
      balancedness_before_(BuildGauge()
                               .Name("relibra_balancedness_before_ratio")
                               .Help("Mean over max load of ranks in the last planned pass, homes "
                                     "as they were and no replicas.")
                               .Register(*registry_)),
      balancedness_after_(BuildGauge()
                              .Name("relibra_balancedness_after_ratio")
                              .Help("Mean over max load of ranks in the last planned pass, as "
                                    "planned.")
                              .Register(*registry_)),
      lower_bound_(BuildGauge()
                       .Name("relibra_imbalance_lower_bound_ratio")
                       .Help("Max over mean load below which no plan of the last pass can come.")
                       .Register(*registry_)),
      missing_share_(BuildGauge()
                         .Name("relibra_missing_route_ratio")
                         .Help("Share of the last planned pass's tokens without a recorded route.")
                         .Register(*registry_)),
      plan_seconds_(BuildHistogram()
                        .Name("relibra_plan_seconds")
                        .Help("Time to plan one pass of one EP group.")
                        .Register(*registry_)),
      record_to_plan_seconds_(BuildHistogram()
                                  .Name("relibra_record_to_plan_seconds")
                                  .Help("Time from a step's last record to the plan.")
                                  .Register(*registry_)),
      plans_(BuildCounter()
                 .Name("relibra_plans_total")
                 .Help("Passes planned, one an EP group.")
                 .Register(*registry_)),
      failed_plans_(BuildCounter()
                        .Name("relibra_failed_plans_total")
                        .Help("Requests for a plan that were refused or failed.")
                        .Register(*registry_)),
      moves_(BuildCounter()
                 .Name("relibra_planned_moves_total")
                 .Help("Experts whose home was planned to change.")
                 .Register(*registry_)),
      replicas_(BuildCounter()
                    .Name("relibra_planned_replicas_total")
                    .Help("Replicas planned, one a micro-batch and layer.")
                    .Register(*registry_)),
      planned_bytes_(BuildCounter()
                         .Name("relibra_planned_bytes_total")
                         .Help("Bytes that plans move: weights and optimizer state of moved "
                               "experts (move), weights and gradients of replicas fetched "
                               "(replica).")
                         .Register(*registry_)),
      step_reports_(BuildCounter()
                        .Name("relibra_step_reports_total")
                        .Help("Reports of agents at the end of a step, by what became of its plan.")
                        .Register(*registry_)),
      requests_(BuildCounter()
                    .Name("relibra_requests_total")
                    .Help("Calls that ended, by method and status code.")
                    .Register(*registry_)) {
  BuildGauge()
      .Name("relibra_build_info")
      .Help("Always 1; the labels tell the version.")
      .Register(*registry_)
      .Add({{"version", kVersion}})
      .Set(1);
}

Metrics::OfJob Metrics::AddJob(const std::string& job) {
  const prometheus::Labels labels = {{kJobLabel, job}};
  const auto with = [&](const char* name, const char* value) {
    return prometheus::Labels{{kJobLabel, job}, {name, value}};
  };
  return {.records = &records_.Add(labels),
          .repeated_records = &repeated_records_.Add(labels),
          .record_bytes = &record_bytes_.Add(labels),
          .balancedness_before = &balancedness_before_.Add(labels),
          .balancedness_after = &balancedness_after_.Add(labels),
          .lower_bound = &lower_bound_.Add(labels),
          .missing_share = &missing_share_.Add(labels),
          .plan_seconds = &plan_seconds_.Add(labels, Seconds()),
          .record_to_plan_seconds = &record_to_plan_seconds_.Add(labels, Seconds()),
          .plans = &plans_.Add(labels),
          .failed_plans = &failed_plans_.Add(labels),
          .moves = &moves_.Add(labels),
          .replicas = &replicas_.Add(labels),
          .replica_bytes = &planned_bytes_.Add(with("kind", "replica")),
          .move_bytes = &planned_bytes_.Add(with("kind", "move")),
          .applied = &step_reports_.Add(with("outcome", "applied")),
          .kept_old = &step_reports_.Add(with("outcome", "kept_old")),
          .failed = &step_reports_.Add(with("outcome", "failed"))};
}

void Metrics::RemoveJob(const OfJob& metrics) {
  records_.Remove(metrics.records);
  repeated_records_.Remove(metrics.repeated_records);
  record_bytes_.Remove(metrics.record_bytes);
  balancedness_before_.Remove(metrics.balancedness_before);
  balancedness_after_.Remove(metrics.balancedness_after);
  lower_bound_.Remove(metrics.lower_bound);
  missing_share_.Remove(metrics.missing_share);
  plan_seconds_.Remove(metrics.plan_seconds);
  record_to_plan_seconds_.Remove(metrics.record_to_plan_seconds);
  plans_.Remove(metrics.plans);
  failed_plans_.Remove(metrics.failed_plans);
  moves_.Remove(metrics.moves);
  replicas_.Remove(metrics.replicas);
  planned_bytes_.Remove(metrics.replica_bytes);
  planned_bytes_.Remove(metrics.move_bytes);
  step_reports_.Remove(metrics.applied);
  step_reports_.Remove(metrics.kept_old);
  step_reports_.Remove(metrics.failed);
}

void Metrics::JobAdded(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  if (!jobs_.contains(job)) jobs_.emplace(job, AddJob(job));
}

void Metrics::JobRemoved(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  RemoveJob(found->second);
  jobs_.erase(found);
}

void Metrics::RecordsAdded(const std::string& job, uint64_t accepted, uint64_t repeated,
                           uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.records->Increment(static_cast<double>(accepted));
  found->second.repeated_records->Increment(static_cast<double>(repeated));
  found->second.record_bytes->Increment(static_cast<double>(bytes));
}

void Metrics::PassPlanned(const PlannedPass& pass, absl::Duration since_last_record) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(pass.job->name());
  if (found == jobs_.end()) return;
  const OfJob& metrics = found->second;
  const PlanSummary& summary = pass.plan.summary;
  const v1::Model& model = pass.job->spec.model();
  metrics.balancedness_before->Set(1 / summary.imbalance_before);
  metrics.balancedness_after->Set(1 / summary.imbalance_after);
  metrics.lower_bound->Set(summary.lower_bound);
  metrics.missing_share->Set(pass.loads->missing_share);
  metrics.plan_seconds->Observe(summary.plan_seconds);
  if (since_last_record != absl::InfiniteDuration()) {
    metrics.record_to_plan_seconds->Observe(absl::ToDoubleSeconds(since_last_record));
  }
  metrics.plans->Increment();
  metrics.moves->Increment(static_cast<double>(summary.moves));
  metrics.replicas->Increment(static_cast<double>(summary.replicas + summary.bridges));
  metrics.move_bytes->Increment(
      static_cast<double>(summary.moves) *
      static_cast<double>(model.weight_bytes() + model.optimizer_bytes()));
  const double fetched =
      static_cast<double>(summary.replicas - summary.replicas_kept + summary.bridges);
  metrics.replica_bytes->Increment(fetched * static_cast<double>(model.weight_bytes()) +
                                   static_cast<double>(summary.replicas + summary.bridges) *
                                       static_cast<double>(model.gradient_bytes()));
}

void Metrics::PlanFailed(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.failed_plans->Increment();
}

void Metrics::StepReported(const v1::StepReport& report) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(report.job());
  if (found == jobs_.end()) return;
  switch (report.outcome()) {
    case v1::STEP_OUTCOME_APPLIED:
      found->second.applied->Increment();
      break;
    case v1::STEP_OUTCOME_KEPT_OLD:
      found->second.kept_old->Increment();
      break;
    default:
      found->second.failed->Increment();
  }
}

void Metrics::RequestDone(absl::string_view method, int code) {
  requests_.Add({{"method", std::string(method)}, {"code", std::string(CodeName(code))}})
      .Increment();
}

}  // namespace relibra::server

#include "planner_service/server/service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner_service/server/join_call.h"
#include "planner_service/server/plan_streams.h"
#include "planner_service/server/quoted.h"
#include "planner_service/server/raw_message.h"
#include "planner_service/server/record_streams.h"
#include "planner_service/server/sequence_packing.h"
#include "planner_service/server/version.h"

namespace relibra::server {
namespace {

void FillStatus(JobState& job, v1::JobStatus& status) {
  *status.mutable_spec() = job.job().spec;
  for (int g = 0; g < job.num_groups(); ++g) {
    for (v1::AgentStatus& agent : job.group(g).agents.Statuses()) {
      *status.add_agents() = std::move(agent);
    }
  }
  for (const std::shared_ptr<Step>& step : job.steps().All()) {
    v1::StepStatus& out = *status.add_steps();
    out.mutable_key()->set_job(job.job().name());
    out.mutable_key()->set_step(step->id().step);
    out.mutable_key()->set_policy_version(step->id().policy_version);
    const StepRecords::Totals totals = step->records().totals();
    out.set_sequences(totals.sequences);
    out.set_tokens(totals.tokens);
    for (const auto& pass : step->passes()) *out.add_plans() = PlanHeader(*pass);
  }
  status.set_records(job.records());
  status.set_record_bytes(job.record_bytes());
  status.set_last_error(job.last_error());
}

absl::Status CheckReport(const v1::StepReport& report, const Job& job) {
  if (report.rank() >= static_cast<uint32_t>(job.topology.num_ranks())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "report.rank: expected less than ", job.topology.num_ranks(), ", got ", report.rank()));
  }
  if (report.outcome() != v1::STEP_OUTCOME_APPLIED &&
      report.outcome() != v1::STEP_OUTCOME_KEPT_OLD &&
      report.outcome() != v1::STEP_OUTCOME_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat(
        "report.outcome: expected APPLIED, KEPT_OLD or FAILED, got ", report.outcome()));
  }
  constexpr size_t kMaxReasonBytes = 1024;
  if (report.reason().size() > kMaxReasonBytes) {
    return absl::InvalidArgumentError(absl::StrCat("report.reason: expected at most ",
                                                   kMaxReasonBytes, " bytes, got ",
                                                   report.reason().size()));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* PlannerService::Answer(grpc::CallbackServerContext* call,
                                                 const char* method, const absl::Status& status) {
  context_.metrics.RequestDone(method, static_cast<int>(status.code()));
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* PlannerService::RegisterJob(grpc::CallbackServerContext* call,
                                                      const v1::RegisterJobRequest* request,
                                                      v1::RegisterJobResponse* response) {
  absl::Status small = CheckMessageBytes(*request, context_.max_message_bytes);
  if (!small.ok()) return Answer(call, "RegisterJob", small);
  absl::StatusOr<JobRegistry::Registered> registered = context_.jobs.Register(request->spec());
  if (!registered.ok()) {
    spdlog::warn("event=job_refused error={}", Quoted(registered.status().ToString()));
    return Answer(call, "RegisterJob", registered.status());
  }
  const Job& job = registered->job->job();
  *response->mutable_spec() = job.spec;
  response->set_existed(registered->existed);
  if (!registered->existed) {
    context_.metrics.JobAdded(job.name());
    spdlog::info("job={} event=job_registered layers={} experts={} ranks={} ep_groups={}",
                 job.name(), job.num_layers(), job.num_experts(), job.topology.num_ranks(),
                 job.groups.size());
  }
  return Answer(call, "RegisterJob", absl::OkStatus());
}

grpc::ServerUnaryReactor* PlannerService::DeleteJob(grpc::CallbackServerContext* call,
                                                    const v1::DeleteJobRequest* request,
                                                    v1::DeleteJobResponse*) {
  absl::Status status = context_.jobs.Delete(request->job());
  if (status.ok()) {
    context_.metrics.JobRemoved(request->job());
    spdlog::info("job={} event=job_deleted", request->job());
  }
  return Answer(call, "DeleteJob", status);
}

grpc::ServerUnaryReactor* PlannerService::GetStatus(grpc::CallbackServerContext* call,
                                                    const v1::GetStatusRequest* request,
                                                    v1::GetStatusResponse* response) {
  response->set_planner_version(kVersion);
  response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - context_.started));
  if (request->job().empty()) {
    for (const auto& job : context_.jobs.All()) FillStatus(*job, *response->add_jobs());
    return Answer(call, "GetStatus", absl::OkStatus());
  }
  absl::StatusOr<std::shared_ptr<JobState>> job = context_.jobs.Find(request->job());
  if (!job.ok()) return Answer(call, "GetStatus", job.status());
  FillStatus(**job, *response->add_jobs());
  return Answer(call, "GetStatus", absl::OkStatus());
}

grpc::ServerReadReactor<grpc::ByteBuffer>* PlannerService::StreamRouting(
    grpc::CallbackServerContext*, grpc::ByteBuffer* response) {
  return NewRoutingStream(context_, response);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* PlannerService::UploadLoads(grpc::CallbackServerContext*,
                                                                       grpc::ByteBuffer* response) {
  return NewUploadStream(context_, response);
}

grpc::ServerWriteReactor<v1::LoadCounts>* PlannerService::GetLoads(
    grpc::CallbackServerContext*, const v1::GetLoadsRequest* request) {
  return NewGetLoadsStream(context_, *request);
}

grpc::ServerUnaryReactor* PlannerService::PlanStep(grpc::CallbackServerContext* call,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  const auto bytes = static_cast<int64_t>(request->Length());
  absl::Status status = CheckMessageBytes(bytes, context_.max_message_bytes);
  if (!status.ok()) return Answer(call, "PlanStep", status);
  absl::StatusOr<MemoryCharge> charge = context_.account->Charge(bytes);
  if (!charge.ok()) return Answer(call, "PlanStep", charge.status());
  // The request waits in memory until its plan is made.
  struct Pending {
    MemoryCharge charge;
    grpc::ByteBuffer bytes;
    v1::PlanStepRequest request;
  };
  auto pending = std::make_shared<Pending>(Pending{*std::move(charge), *request, {}});
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto done = [this, reactor, response, pending](absl::StatusOr<StepPlanner::Passes> passes) {
    if (passes.ok()) {
      v1::PlanStepResponse message;
      for (const auto& pass : *passes) *message.add_plans() = PlanHeader(*pass);
      *response = SerializeRaw(message);
    }
    context_.metrics.RequestDone("PlanStep", static_cast<int>(passes.status().code()));
    reactor->Finish(ToGrpc(passes.status()));
  };
  context_.stream_pool.Submit([this, pending, done] {
    absl::Status parsed = ParseRaw(pending->bytes, pending->request);
    if (!parsed.ok()) {
      done(parsed);
      return;
    }
    absl::StatusOr<std::shared_ptr<JobState>> job =
        context_.jobs.Find(pending->request.key().job());
    if (!job.ok()) {
      done(job.status());
      return;
    }
    context_.planner.Plan(*std::move(job), pending->request, done);
  });
  return reactor;
}

grpc::ServerUnaryReactor* PlannerService::PackSequences(grpc::CallbackServerContext* call,
                                                        const v1::PackSequencesRequest* request,
                                                        v1::PackSequencesResponse* response) {
  absl::Status small = CheckMessageBytes(*request, context_.max_message_bytes);
  if (!small.ok()) return Answer(call, "PackSequences", small);
  absl::StatusOr<std::shared_ptr<JobState>> job = context_.jobs.Find(request->key().job());
  if (!job.ok()) return Answer(call, "PackSequences", job.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // Beside the job's plans, in their order: both read its homes.
  context_.planning_pool.Submit(
      request->key().job(), [this, job = *std::move(job), request, response, reactor] {
        absl::StatusOr<v1::PackSequencesResponse> packed =
            ProposeComposition(*job, *request, context_.planning_pool);
        if (packed.ok()) {
          *response = *std::move(packed);
        } else {
          job->SetLastError(packed.status().message());
        }
        context_.metrics.RequestDone("PackSequences", static_cast<int>(packed.status().code()));
        reactor->Finish(ToGrpc(packed.status()));
      });
  return reactor;
}

grpc::ServerWriteReactor<v1::PlanUpdate>* PlannerService::GetPlan(
    grpc::CallbackServerContext*, const v1::GetPlanRequest* request) {
  return NewGetPlanStream(context_, *request);
}

grpc::ServerUnaryReactor* PlannerService::JoinGroup(grpc::CallbackServerContext* call,
                                                    const v1::JoinGroupRequest* request,
                                                    v1::JoinGroupResponse* response) {
  absl::Status small = CheckMessageBytes(*request, context_.max_message_bytes);
  if (!small.ok()) return Answer(call, "JoinGroup", small);
  return NewJoinCall(context_, call, *request, response);
}

grpc::ServerWriteReactor<v1::PlanUpdate>* PlannerService::WatchPlans(
    grpc::CallbackServerContext*, const v1::WatchPlansRequest* request) {
  return NewWatchStream(context_, *request);
}

grpc::ServerUnaryReactor* PlannerService::ReportStep(grpc::CallbackServerContext* call,
                                                     const v1::ReportStepRequest* request,
                                                     v1::ReportStepResponse*) {
  absl::Status small = CheckMessageBytes(*request, context_.max_message_bytes);
  return Answer(call, "ReportStep", small.ok() ? TakeReport(request->report()) : small);
}

absl::Status PlannerService::TakeReport(const v1::StepReport& report) {
  absl::StatusOr<std::shared_ptr<JobState>> job = context_.jobs.Find(report.job());
  if (!job.ok()) return job.status();
  absl::StatusOr<int> group = (*job)->job().GroupIndex(report.ep_group());
  if (!group.ok()) return group.status();
  absl::Status status = CheckReport(report, (*job)->job());
  if (!status.ok()) return status;
  GroupState& state = (*job)->group(*group);
  state.agents.Report(report);
  context_.metrics.StepReported(report);
  if (report.outcome() == v1::STEP_OUTCOME_APPLIED) {
    spdlog::debug("job={} step={} policy_version={} ep_group={} rank={} event=applied",
                  report.job(), report.step(), report.policy_version(), report.ep_group(),
                  report.rank());
    return absl::OkStatus();
  }
  spdlog::warn("job={} step={} policy_version={} ep_group={} rank={} event={} reason={}",
               report.job(), report.step(), report.policy_version(), report.ep_group(),
               report.rank(),
               report.outcome() == v1::STEP_OUTCOME_KEPT_OLD ? "kept_old" : "step_failed",
               Quoted(report.reason()));
  if (report.outcome() != v1::STEP_OUTCOME_KEPT_OLD) return absl::OkStatus();
  // A plan is applied by all ranks or by none, so one rank's word is enough: the homes that the
  // plan would have moved are where they were.
  absl::StatusOr<std::shared_ptr<Step>> step =
      (*job)->steps().Find({report.policy_version(), report.step()});
  if (!step.ok()) return absl::OkStatus();  // long forgotten
  const std::shared_ptr<const PlannedPass> pass = (*step)->TakeBackHomes(*group, report.digest());
  if (pass == nullptr) return absl::OkStatus();
  const bool taken_back = state.homes.TakeBack(report.digest(), pass->homes_before);
  const StoredHomes homes = {*group, pass->homes_before, ""};
  status = context_.store.TakeBack((*job)->stored_id(), *pass, taken_back ? &homes : nullptr);
  if (!status.ok()) return status;
  if (taken_back) {
    spdlog::warn("job={} step={} policy_version={} ep_group={} event=homes_taken_back",
                 report.job(), report.step(), report.policy_version(), report.ep_group());
  }
  return absl::OkStatus();
}

}  // namespace relibra::server

#include "planner_service/server/step_planner.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner_service/core/planner.h"
#include "planner_service/server/composition.h"
#include "planner_service/server/quoted.h"
#include "planner_service/server/request_digest.h"

namespace relibra::server {

// A checked request.
struct StepPlanner::Order {
  std::shared_ptr<JobState> job;
  const v1::PlanStepRequest* request = nullptr;
  StepId id;
  std::string pass;
  std::vector<int> groups;  // which to plan
  PlanOptions options;
};

namespace {

absl::StatusOr<std::vector<int>> GroupsOf(const Job& job, const v1::PlanStepRequest& request) {
  if (request.ep_group().empty() && request.has_composition()) {
    std::vector<int> all;
    for (size_t g = 0; g < job.groups.size(); ++g) all.push_back(static_cast<int>(g));
    return all;
  }
  absl::StatusOr<int> group = job.GroupIndex(request.ep_group());
  if (!group.ok()) return group.status();
  return std::vector<int>{*group};
}

// What the request asks a pass to be planned from; `loads` as far as they are made already.
std::string LoadsDigestOf(const v1::PlanStepRequest& request, const ChargedLoads* loads) {
  if (request.has_composition()) return CompositionDigest(request.composition());
  if (request.has_counts()) return LoadsDigest(loads->loads);
  return "uploaded";
}

absl::Status AnotherRequest(const PlannedPass& known, const RequestDigest& asked) {
  const std::string what =
      absl::StrCat("pass \"", known.key.pass, "\" of ", ToString(known.key.step), ", EP group \"",
                   known.group().name, "\", is already planned (digest ", known.plan.digest, ")");
  if (known.request.loads != asked.loads) {
    return absl::FailedPreconditionError(absl::StrCat(what, " from other loads"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what, " with other options: ", known.request.options, "; now asked: ", asked.options));
}

absl::StatusOr<MemoryCharge> ChargeLoads(const Job& job, int group, uint32_t num_micro_batches,
                                         Step& step) {
  constexpr uint32_t kMost = 1 << 30;
  if (num_micro_batches > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_micro_batches: expected at most ", kMost, ", got ", num_micro_batches));
  }
  return step.account().Charge(
      LoadBytes(GroupLoadShape(job, group, static_cast<int>(num_micro_batches))));
}

absl::StatusOr<std::shared_ptr<const ChargedLoads>> CountedLoads(const Job& job, int group,
                                                                 const v1::LoadCounts& counts,
                                                                 Step& step) {
  absl::Status shape = CheckCountsShape(job, group, counts);
  if (!shape.ok()) return shape;
  absl::StatusOr<MemoryCharge> charge = ChargeLoads(job, group, counts.num_micro_batches(), step);
  if (!charge.ok()) return charge.status();
  absl::StatusOr<Loads> loads = LoadsFromCounts(job, group, counts);
  if (!loads.ok()) return loads.status();
  return std::make_shared<const ChargedLoads>(
      ChargedLoads{*std::move(loads), 0, *std::move(charge)});
}

absl::StatusOr<std::shared_ptr<const ChargedLoads>> ComposedLoads(
    const Job& job, int group, const v1::Composition& composition,
    const StepRecords::SequenceMap& sequences, Step& step) {
  absl::StatusOr<MemoryCharge> charge =
      ChargeLoads(job, group, composition.num_micro_batches(), step);
  if (!charge.ok()) return charge.status();
  absl::StatusOr<GroupLoads> made = MakeGroupLoads(job, group, composition, sequences);
  if (!made.ok()) return made.status();
  return std::make_shared<const ChargedLoads>(
      ChargedLoads{std::move(made->loads), made->missing_share, *std::move(charge)});
}

}  // namespace

absl::StatusOr<std::string> PassName(const std::string& pass) {
  if (pass.empty()) return std::string("update");
  absl::Status status = CheckName("pass", pass);
  if (!status.ok()) return status;
  return pass;
}

void StepPlanner::Plan(std::shared_ptr<JobState> job, const v1::PlanStepRequest& request,
                       DoneCallback done) {
  auto order = std::make_shared<Order>();
  order->request = &request;
  order->id = {request.key().policy_version(), request.key().step()};
  absl::StatusOr<std::string> pass = PassName(request.pass());
  absl::StatusOr<std::vector<int>> groups = GroupsOf(job->job(), request);
  absl::StatusOr<PlanOptions> options = MakePlanOptions(
      "options", request.has_options() ? request.options() : job->job().spec.plan_options());
  absl::Status status = pass.ok() ? groups.status() : pass.status();
  if (status.ok()) status = options.status();
  if (status.ok() && request.loads_case() == v1::PlanStepRequest::LOADS_NOT_SET) {
    status = absl::InvalidArgumentError(
        "loads: expected composition, counts or uploaded_counts, got none");
  }
  if (status.ok() && request.has_uploaded_counts() && !request.uploaded_counts()) {
    status = absl::InvalidArgumentError("uploaded_counts: expected true where it is set");
  }
  if (status.ok() && request.has_composition()) {
    status = CheckComposition(job->job(), request.composition());
  }
  if (!status.ok()) {
    done(status);
    return;
  }
  order->pass = *std::move(pass);
  order->groups = *std::move(groups);
  order->options = *options;
  order->job = std::move(job);
  pool_.Submit(order->job->job().name(), [this, order, done = std::move(done)] {
    absl::StatusOr<Passes> passes = PlanNow(*order);
    if (!passes.ok()) {
      metrics_.PlanFailed(order->job->job().name());
      order->job->SetLastError(passes.status().message());
      spdlog::warn("job={} step={} policy_version={} pass={} event=plan_failed error={}",
                   order->job->job().name(), order->id.step, order->id.policy_version, order->pass,
                   Quoted(passes.status().ToString()));
    }
    done(std::move(passes));
  });
}

absl::StatusOr<StepPlanner::Passes> StepPlanner::PlanNow(const Order& order) {
  const Job& job = order.job->job();
  const v1::PlanStepRequest& request = *order.request;
  absl::StatusOr<std::shared_ptr<Step>> found = request.has_counts()
                                                    ? order.job->steps().FindOrCreate(order.id)
                                                    : order.job->steps().Find(order.id);
  if (!found.ok()) return found.status();
  Step& step = **found;

  // Known passes first: the same request again gets the same plan.
  Passes passes(order.groups.size());
  std::vector<std::shared_ptr<const ChargedLoads>> loads(order.groups.size());
  RequestDigest digest{.loads = "", .options = OptionsDigest(order.options)};
  bool all_known = true;
  for (size_t i = 0; i < order.groups.size(); ++i) {
    const int group = order.groups[i];
    passes[i] = step.FindPass(order.pass, group);
    if (request.has_counts()) {
      absl::StatusOr<std::shared_ptr<const ChargedLoads>> counted =
          CountedLoads(job, group, request.counts(), step);
      if (!counted.ok()) return counted.status();
      loads[i] = *std::move(counted);
    } else if (request.has_uploaded_counts() && passes[i] == nullptr) {
      loads[i] = step.FindUpload(order.pass, group);
      if (loads[i] == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat("no loads were uploaded for pass \"", order.pass, "\" of ",
                         ToString(order.id), ", EP group \"", job.groups[group].name, "\""));
      }
    }
    if (digest.loads.empty()) digest.loads = LoadsDigestOf(request, loads[i].get());
    if (passes[i] == nullptr) {
      all_known = false;
    } else if (passes[i]->request != digest) {
      return AnotherRequest(*passes[i], digest);
    }
  }
  if (all_known) return passes;

  const bool was_planned = !step.passes().empty();
  const std::string by = absl::StrCat("pass \"", order.pass, "\" of ", ToString(order.id));
  absl::Status sealed = step.records().ReadAndSeal(
      by, [&](const StepRecords::SequenceMap& sequences) -> absl::Status {
        if (!request.has_composition()) return absl::OkStatus();
        for (size_t i = 0; i < order.groups.size(); ++i) {
          if (passes[i] != nullptr) continue;
          absl::StatusOr<std::shared_ptr<const ChargedLoads>> composed =
              ComposedLoads(job, order.groups[i], request.composition(), sequences, step);
          if (!composed.ok()) return composed.status();
          loads[i] = *std::move(composed);
        }
        return absl::OkStatus();
      });
  if (!sealed.ok()) return sealed;

  Passes made;
  for (size_t i = 0; i < order.groups.size(); ++i) {
    if (passes[i] != nullptr) continue;
    absl::StatusOr<std::shared_ptr<PlannedPass>> pass =
        PlanGroup(order, step, order.groups[i], std::move(loads[i]));
    if (!pass.ok()) {
      if (!was_planned) step.records().Unseal();
      return pass.status();
    }
    (*pass)->request = digest;
    passes[i] = *std::move(pass);
    made.push_back(passes[i]);
  }
  Announce(*order.job, step, made);
  return passes;
}

absl::StatusOr<std::shared_ptr<PlannedPass>> StepPlanner::PlanGroup(
    const Order& order, Step& step, int group, std::shared_ptr<const ChargedLoads> loads) {
  PlanOptions options = order.options;
  std::shared_ptr<const Placement> homes_before = step.Homes(group);
  if (homes_before == nullptr) {
    homes_before = order.job->group(group).homes.Get();
  } else {
    options.max_moves = 0;  // an earlier pass of this step has chosen its homes
  }
  const absl::Time start = absl::Now();
  absl::StatusOr<relibra::Plan> plan =
      PlanStep(loads->loads, order.job->job().topology, *homes_before, options,
               [this](int n, absl::FunctionRef<void(int)> task) { pool_.ParallelFor(n, task); });
  if (!plan.ok()) return plan.status();
  plan->summary.plan_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  absl::StatusOr<MemoryCharge> charge = step.account().Charge(PlanBytes(*plan));
  if (!charge.ok()) return charge.status();
  return std::make_shared<PlannedPass>(PlannedPass{.job = order.job->shared_job(),
                                                   .key = {order.id, order.pass, group},
                                                   .plan = *std::move(plan),
                                                   .loads = std::move(loads),
                                                   .request = {},
                                                   .homes_before = std::move(homes_before),
                                                   .charge = *std::move(charge)});
}

void StepPlanner::Announce(JobState& job, Step& step, const Passes& made) {
  const absl::Time last_record = step.records().totals().last_record;
  for (const std::shared_ptr<const PlannedPass>& pass : made) {
    const int group = pass->key.group;
    const bool sets_homes = step.Homes(group) == nullptr;
    step.AddPass(pass);
    if (sets_homes) job.group(group).homes.Set(step.Homes(group), pass->plan.digest);
    job.group(group).feed.Announce(pass);
    metrics_.PassPlanned(*pass, absl::Now() - last_record);
    const PlanSummary& summary = pass->plan.summary;
    spdlog::info(
        "job={} step={} policy_version={} pass={} ep_group={} event=planned digest={} "
        "imbalance_before={:.4f} imbalance_after={:.4f} moves={} replicas={} bridges={} "
        "missing_share={:.4f} plan_seconds={:.4f}",
        job.job().name(), pass->key.step.step, pass->key.step.policy_version, pass->key.pass,
        pass->group().name, pass->plan.digest, summary.imbalance_before, summary.imbalance_after,
        summary.moves, summary.replicas, summary.bridges, pass->loads->missing_share,
        summary.plan_seconds);
  }
  for (const StepId& forgotten : job.steps().ForgetOldSteps()) {
    for (int g = 0; g < job.num_groups(); ++g) job.group(g).feed.Forget(forgotten);
  }
}

}  // namespace relibra::server

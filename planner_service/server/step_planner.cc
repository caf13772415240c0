#include "planner_service/server/step_planner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
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

// What is known of the groups of an order, and what is left to do.
struct StepPlanner::Work {
  std::shared_ptr<Step> step;
  RequestDigest digest;
  // By place in Order.groups: the pass, null where it is not planned yet; and then its loads.
  Passes passes;
  std::vector<std::shared_ptr<const ChargedLoads>> loads;

  bool all_planned() const {
    return std::all_of(passes.begin(), passes.end(), [](const auto& p) { return p != nullptr; });
  }
};

absl::StatusOr<StepPlanner::Passes> StepPlanner::PlanNow(const Order& order) {
  absl::StatusOr<Work> work = Begin(order);
  if (!work.ok()) return work.status();
  // The same request again gets the same plan.
  if (work->all_planned()) return std::move(work->passes);
  const bool was_planned = !work->step->passes().empty();
  absl::Status status = SealRecords(order, *work);
  if (!status.ok()) return status;
  status = PlanAndAnnounce(order, *work);
  if (!status.ok()) {
    if (!was_planned) work->step->records().Unseal();
    return status;
  }
  return std::move(work->passes);
}

absl::StatusOr<StepPlanner::Work> StepPlanner::Begin(const Order& order) {
  const Job& job = order.job->job();
  const v1::PlanStepRequest& request = *order.request;
  absl::StatusOr<std::shared_ptr<Step>> step = request.has_counts()
                                                   ? order.job->steps().FindOrCreate(order.id)
                                                   : order.job->steps().Find(order.id);
  if (!step.ok()) return step.status();
  Work work = {.step = *std::move(step),
               .digest = {.loads = "", .options = OptionsDigest(order.options)},
               .passes = Passes(order.groups.size()),
               .loads = std::vector<std::shared_ptr<const ChargedLoads>>(order.groups.size())};
  for (size_t i = 0; i < order.groups.size(); ++i) {
    const int group = order.groups[i];
    work.passes[i] = work.step->FindPass(order.pass, group);
    if (request.has_counts()) {
      absl::StatusOr<std::shared_ptr<const ChargedLoads>> counted =
          CountedLoads(job, group, request.counts(), *work.step);
      if (!counted.ok()) return counted.status();
      work.loads[i] = *std::move(counted);
    } else if (request.has_uploaded_counts() && work.passes[i] == nullptr) {
      work.loads[i] = work.step->FindUpload(order.pass, group);
      if (work.loads[i] == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat("no loads were uploaded for pass \"", order.pass, "\" of ",
                         ToString(order.id), ", EP group \"", job.groups[group].name, "\""));
      }
    }
    if (i == 0) work.digest.loads = LoadsDigestOf(request, work.loads[i].get());
    if (work.passes[i] != nullptr && work.passes[i]->request != work.digest) {
      return AnotherRequest(*work.passes[i], work.digest);
    }
  }
  return work;
}

absl::Status StepPlanner::SealRecords(const Order& order, Work& work) {
  const v1::PlanStepRequest& request = *order.request;
  const std::string by = absl::StrCat("pass \"", order.pass, "\" of ", ToString(order.id));
  return work.step->records().ReadAndSeal(
      by, [&](const StepRecords::SequenceMap& sequences) -> absl::Status {
        if (!request.has_composition()) return absl::OkStatus();
        for (size_t i = 0; i < order.groups.size(); ++i) {
          if (work.passes[i] != nullptr) continue;
          absl::StatusOr<std::shared_ptr<const ChargedLoads>> composed = ComposedLoads(
              order.job->job(), order.groups[i], request.composition(), sequences, *work.step);
          if (!composed.ok()) return composed.status();
          work.loads[i] = *std::move(composed);
        }
        return absl::OkStatus();
      });
}

absl::Status StepPlanner::PlanAndAnnounce(const Order& order, Work& work) {
  Passes made;
  std::vector<StoredHomes> homes;
  for (size_t i = 0; i < order.groups.size(); ++i) {
    if (work.passes[i] != nullptr) continue;
    const int group = order.groups[i];
    absl::StatusOr<std::shared_ptr<PlannedPass>> pass =
        PlanGroup(order, *work.step, group, std::move(work.loads[i]));
    if (!pass.ok()) return pass.status();
    (*pass)->request = work.digest;
    work.passes[i] = *std::move(pass);
    made.push_back(work.passes[i]);
    if (work.step->Homes(group) == nullptr) {
      homes.push_back({group, HomesOf(made.back()->plan), made.back()->plan.digest});
    }
  }
  // What was announced must be known after a crash, so it is stored first.
  absl::Status stored = store_.AddPasses(order.job->stored_id(), made, homes);
  if (!stored.ok()) return stored;
  Announce(*order.job, *work.step, made);
  return absl::OkStatus();
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
  const std::vector<StepId> all_forgotten = job.steps().ForgetOldSteps();
  for (const StepId& forgotten : all_forgotten) {
    for (int g = 0; g < job.num_groups(); ++g) job.group(g).feed.Forget(forgotten);
  }
  absl::Status stored = store_.ForgetSteps(job.stored_id(), all_forgotten);
  if (!stored.ok()) {
    // They are forgotten again when the planner starts.
    spdlog::warn("job={} event=forget_failed error={}", job.job().name(),
                 Quoted(stored.ToString()));
  }
}

}  // namespace relibra::server

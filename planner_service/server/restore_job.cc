#include "planner_service/server/restore_job.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/server/composition.h"

namespace relibra::server {
namespace {

absl::Status RestorePass(StoredPass stored, JobState& job) {
  absl::StatusOr<std::shared_ptr<Step>> step = job.steps().FindOrCreate(stored.key.step);
  if (!step.ok()) return step.status();
  absl::StatusOr<MemoryCharge> loads_charge =
      (*step)->account().Charge(LoadBytes(stored.loads.shape()));
  if (!loads_charge.ok()) return loads_charge.status();
  absl::StatusOr<MemoryCharge> plan_charge = (*step)->account().Charge(PlanBytes(stored.plan));
  if (!plan_charge.ok()) return plan_charge.status();
  auto loads = std::make_shared<const ChargedLoads>(
      ChargedLoads{std::move(stored.loads), stored.missing_share, *std::move(loads_charge)});
  auto pass = std::make_shared<const PlannedPass>(
      PlannedPass{.job = job.shared_job(),
                  .key = stored.key,
                  .plan = std::move(stored.plan),
                  .loads = std::move(loads),
                  .request = std::move(stored.request),
                  .homes_before = std::move(stored.homes_before),
                  .charge = *std::move(plan_charge)});
  absl::Status sealed = (*step)->records().ReadAndSeal(
      absl::StrCat("pass \"", pass->key.pass, "\" of ", ToString(pass->key.step)),
      [](const StepRecords::SequenceMap&) { return absl::OkStatus(); });
  if (!sealed.ok()) return sealed;
  (*step)->AddPass(pass);
  if (stored.taken_back) (*step)->TakeBackHomes(pass->key.group, pass->plan.digest);
  PlanFeed& feed = job.group(pass->key.group).feed;
  feed.Announce(std::move(pass));
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreJob(StoredJob stored, JobState& job) {
  for (StoredHomes& homes : stored.homes) {
    job.group(homes.group).homes.Set(std::move(homes.homes), std::move(homes.digest));
  }
  for (StoredPass& pass : stored.passes) {
    absl::Status status = RestorePass(std::move(pass), job);
    if (!status.ok()) return status;
  }
  for (const StepId& forgotten : job.steps().ForgetOldSteps()) {
    for (int g = 0; g < job.num_groups(); ++g) job.group(g).feed.Forget(forgotten);
  }
  job.steps().NoteForgotten();
  return absl::OkStatus();
}

}  // namespace relibra::server

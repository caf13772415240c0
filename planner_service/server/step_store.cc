#include "planner_service/server/step_store.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace relibra::server {
namespace {

// What an empty step costs: its maps and its entry.
constexpr int64_t kStepOverhead = 1024;

}  // namespace

Step::Step(std::shared_ptr<const Job> job, StepId id, std::shared_ptr<MemoryAccount> account,
           MemoryCharge charge)
    : id_(id),
      account_(std::move(account)),
      charge_(std::move(charge)),
      records_(std::move(job), account_) {}

absl::Status Step::PutUpload(const std::string& pass, int group,
                             std::shared_ptr<const ChargedLoads> loads) {
  absl::MutexLock lock(&mutex_);
  const auto planned = passes_.find({pass, group});
  if (planned != passes_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("pass \"", pass, "\" of ", ToString(id_),
                                                      " is already planned (digest ",
                                                      planned->second->plan.digest, ")"));
  }
  uploads_[{pass, group}] = std::move(loads);
  return absl::OkStatus();
}

std::shared_ptr<const ChargedLoads> Step::FindUpload(const std::string& pass, int group) const {
  absl::MutexLock lock(&mutex_);
  const auto found = uploads_.find({pass, group});
  return found == uploads_.end() ? nullptr : found->second;
}

std::shared_ptr<const PlannedPass> Step::FindPass(const std::string& pass, int group) const {
  absl::MutexLock lock(&mutex_);
  const auto found = passes_.find({pass, group});
  return found == passes_.end() ? nullptr : found->second;
}

void Step::AddPass(std::shared_ptr<const PlannedPass> pass) {
  absl::MutexLock lock(&mutex_);
  const PassAndGroup key(pass->key.pass, pass->key.group);
  uploads_.erase(key);
  if (first_passes_.emplace(pass->key.group, pass).second) {
    homes_[pass->key.group] = HomesOf(pass->plan);
  }
  passes_.emplace(key, std::move(pass));
}

std::vector<std::shared_ptr<const PlannedPass>> Step::passes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const PlannedPass>> all;
  all.reserve(passes_.size());
  for (const auto& [key, pass] : passes_) all.push_back(pass);
  return all;
}

std::shared_ptr<const Placement> Step::Homes(int group) const {
  absl::MutexLock lock(&mutex_);
  const auto found = homes_.find(group);
  return found == homes_.end() ? nullptr : found->second;
}

std::shared_ptr<const PlannedPass> Step::TakeBackHomes(int group, absl::string_view digest) {
  absl::MutexLock lock(&mutex_);
  const auto found = first_passes_.find(group);
  if (found == first_passes_.end() || found->second->plan.digest != digest) return nullptr;
  homes_[group] = found->second->homes_before;
  return found->second;
}

absl::StatusOr<std::shared_ptr<Step>> StepStore::FindOrCreate(const StepId& id) {
  absl::MutexLock lock(&mutex_);
  const auto found = steps_.find(id);
  if (found != steps_.end()) return found->second;
  if (last_forgotten_.has_value() && id <= *last_forgotten_) {
    return absl::FailedPreconditionError(
        absl::StrCat(ToString(id), " is over: ", ToString(*last_forgotten_),
                     " and all before it are forgotten (--keep-steps ", limits_.keep_steps, ")"));
  }
  absl::StatusOr<MemoryCharge> charge = job_account_->Charge(kStepOverhead);
  if (!charge.ok()) return charge.status();
  auto account = MemoryAccount::Create(absl::StrCat("job \"", job_->name(), "\", ", ToString(id)),
                                       "--max-step-bytes", limits_.max_step_bytes, job_account_);
  auto step = std::make_shared<Step>(job_, id, std::move(account), *std::move(charge));
  steps_.emplace(id, step);
  return step;
}

absl::StatusOr<std::shared_ptr<Step>> StepStore::Find(const StepId& id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = steps_.find(id);
  if (found != steps_.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("job \"", job_->name(), "\": nothing is known of ", ToString(id)));
}

std::vector<StepId> StepStore::ForgetOldSteps() {
  // Steps are destroyed after the lock is released.
  std::vector<std::shared_ptr<Step>> forgotten;
  std::vector<StepId> ids;
  absl::MutexLock lock(&mutex_);
  int planned = 0;
  auto it = steps_.end();
  while (it != steps_.begin()) {
    --it;
    if (planned == limits_.keep_steps) {
      ids.push_back(it->first);
      forgotten.push_back(std::move(it->second));
      if (!last_forgotten_.has_value() || *last_forgotten_ < it->first) {
        last_forgotten_ = it->first;
      }
      it = steps_.erase(it);
    } else if (!it->second->passes().empty()) {
      ++planned;
    }
  }
  return ids;
}

void StepStore::NoteForgotten() {
  absl::MutexLock lock(&mutex_);
  if (static_cast<int>(steps_.size()) < limits_.keep_steps) return;
  StepId before = steps_.begin()->first;
  if (before == StepId()) return;
  if (before.step > 0) {
    --before.step;
  } else {
    before = {.policy_version = before.policy_version - 1,
              .step = std::numeric_limits<uint32_t>::max()};
  }
  if (!last_forgotten_.has_value() || *last_forgotten_ < before) last_forgotten_ = before;
}

std::vector<std::shared_ptr<Step>> StepStore::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Step>> all;
  all.reserve(steps_.size());
  for (const auto& [id, step] : steps_) all.push_back(step);
  return all;
}

}  // namespace relibra::server

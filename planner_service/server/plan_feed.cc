#include "planner_service/server/plan_feed.h"

#include <utility>
#include <vector>

namespace relibra::server {
namespace {

// Takes all wake-ups that are asked for out of `watchers`.
std::vector<std::function<void()>> TakeWakeUps(
    absl::flat_hash_map<uint64_t, std::function<void()>>& watchers) {
  std::vector<std::function<void()>> wake_ups;
  for (auto& [name, wake] : watchers) {
    if (wake != nullptr) wake_ups.push_back(std::exchange(wake, nullptr));
  }
  return wake_ups;
}

}  // namespace

PlanFeed::Next PlanFeed::After(uint64_t position, uint32_t from_step, uint64_t watcher,
                               std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return {.pass = nullptr, .position = position, .closed = closed_};
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end()) {
    return {.pass = nullptr,
            .position = position,
            .closed = absl::CancelledError("the watch was cancelled")};
  }
  for (auto it = passes_.upper_bound(position); it != passes_.end(); ++it) {
    if (it->second->key.step.step >= from_step) {
      return {.pass = it->second, .position = it->first, .closed = {}};
    }
  }
  found->second = std::move(wake);
  return {};
}

uint64_t PlanFeed::AddWatcher() {
  absl::MutexLock lock(&mutex_);
  watchers_.emplace(++last_watcher_, nullptr);
  return last_watcher_;
}

bool PlanFeed::RemoveWatcher(uint64_t watcher) {
  absl::MutexLock lock(&mutex_);
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end()) return false;
  const bool waited = found->second != nullptr;
  watchers_.erase(found);
  return waited;
}

int PlanFeed::num_watchers() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(watchers_.size());
}

void PlanFeed::Announce(std::shared_ptr<const PlannedPass> pass) {
  std::vector<std::function<void()>> wake_ups;
  {
    absl::MutexLock lock(&mutex_);
    passes_.emplace(++last_position_, std::move(pass));
    wake_ups = TakeWakeUps(watchers_);
  }
  for (const auto& wake : wake_ups) wake();
}

void PlanFeed::Forget(const StepId& step) {
  absl::MutexLock lock(&mutex_);
  for (auto it = passes_.begin(); it != passes_.end();) {
    it = it->second->key.step == step ? passes_.erase(it) : std::next(it);
  }
}

void PlanFeed::Close(const absl::Status& status) {
  std::vector<std::function<void()>> wake_ups;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = status;
    wake_ups = TakeWakeUps(watchers_);
  }
  for (const auto& wake : wake_ups) wake();
}

}  // namespace relibra::server

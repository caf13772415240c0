// The plans of one EP group in the order they were announced, for the agents that watch.
//
// A watcher pulls: it asks for the next plan after the last it had and, when there is none yet,
// leaves a wake-up. So a slow watcher costs nothing but its place in the order.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_PLAN_FEED_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_PLAN_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/server/planned_pass.h"

namespace relibra::server {

// Any thread may call. Wake-ups run on the thread that announces or closes, without a lock held.
class PlanFeed {
 public:
  struct Next {
    std::shared_ptr<const PlannedPass> pass;  // null: none yet
    uint64_t position = 0;                    // of `pass`, to ask for what comes after it
    absl::Status closed;                      // not OK: the feed is over
  };

  // The first plan behind `position` (0: from the beginning) whose step is at least `from_step`.
  // When there is none and the feed is open, `wake` will be called once, when that may have
  // changed, under the name `watcher`. A watcher that was removed is told CANCELLED.
  Next After(uint64_t position, uint32_t from_step, uint64_t watcher, std::function<void()> wake);

  // A name for a new watcher.
  uint64_t AddWatcher();
  // Forgets a watcher. True when it had left a wake-up, which then is not called.
  bool RemoveWatcher(uint64_t watcher);
  int num_watchers() const;

  void Announce(std::shared_ptr<const PlannedPass> pass);
  // No longer offers plans of a step.
  void Forget(const StepId& step);
  // Ends the feed: whoever asks from now on is told `status` (not OK).
  void Close(const absl::Status& status);

 private:
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const PlannedPass>> passes_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_position_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_watcher_ ABSL_GUARDED_BY(mutex_) = 0;
  // Every watcher; an empty function where it has not asked to be woken.
  absl::flat_hash_map<uint64_t, std::function<void()>> watchers_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_PLAN_FEED_H_

// The splits of a layer as columns, made once for all the ranks that will be told them.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_SPLIT_CACHE_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_SPLIT_CACHE_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "relibra/v1/plan.pb.h"

namespace relibra::server {

// Watchers of a group go through a plan's layers side by side, so the few layers made last are all
// that need be held: a whole plan's splits would be millions of rows.
//
// Any thread may call; while one makes a layer, others that want a layer wait for it.
class SplitCache {
 public:
  // [micro-batch][source rank]; a rank without rows has empty columns.
  using LayerSplits = std::vector<std::vector<v1::SplitColumns>>;

  // The splits of plan.layers[layer] for these loads; always the same plan and loads.
  // O(micro-batches x splits of the layer) when they are not held.
  std::shared_ptr<const LayerSplits> Get(const Plan& plan, const Loads& loads, int layer);

 private:
  static constexpr size_t kLayersHeld = 3;

  absl::Mutex mutex_;
  // The newest first.
  std::deque<std::pair<int, std::shared_ptr<const LayerSplits>>> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_SPLIT_CACHE_H_

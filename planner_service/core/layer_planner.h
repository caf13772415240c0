// Plans one layer once its homes are chosen: bridges, then the replicas of every micro-batch.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_
#define RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

struct LayerOutcome {
  LayerPlan plan;
  int64_t objective = 0;  // sum over micro-batches of the heaviest rank
  double cost = 0;        // objective + what moves, bridges and fetched replicas cost
  int bridges = 0;
  int64_t kept = 0;  // replicas that were already there
};

// The best outcome with these homes. totals: [M, E]; current, home_rank: [E].
LayerOutcome PlanReplicasAndBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current,
                                    const std::vector<int32_t>& home_rank,
                                    const PlanOptions& options);

// The outcome for the homes that reordering chose, or for the current ones where they turn out no
// worse: what replicas make of homes is known only once they are planned. For a handful of experts,
// where single experts decide, homes are also searched on the outcome itself (when moves are free).
LayerOutcome PlanLayer(const Topology& topology, absl::Span<const uint32_t> totals,
                       absl::Span<const int32_t> current, std::vector<int32_t> home_rank,
                       const PlanOptions& options);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_

// Plans one layer once its homes are chosen: bridges, then the replicas of every micro-batch.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_
#define RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/reorder.h"
#include "planner_service/core/topology.h"

namespace relibra {

struct LayerOutcome {
  LayerPlan plan;
  int64_t objective = 0;  // sum over micro-batches of the heaviest rank
  // objective + what moves, bridges and fetched replicas cost, and what bridges that the planner
  // makes by itself have to gain; infinite for a plan whose imbalance,
  // a mean over micro-batches however large, is worse than that of doing nothing
  double cost = 0;
  int bridges = 0;
  int64_t kept = 0;  // replicas that were already there
};

// The best outcome with these homes. totals: [M, E]; current, home_rank: [E].
LayerOutcome PlanReplicasAndBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current,
                                    const std::vector<int32_t>& home_rank,
                                    const PlanOptions& options);

// The best outcome over `choices` (not empty; the current homes first, ascending in moves): what
// replicas and bridges make of homes is known only once they are planned, so that a longer list
// never ends worse (of more than 64 experts only the first and the last choice are planned). The
// current homes stay where they turn out no worse. For a handful of experts, where single experts
// decide, homes are also searched on the outcome itself (when moves are free).
LayerOutcome PlanLayer(const Topology& topology, absl::Span<const uint32_t> totals,
                       absl::Span<const int32_t> current, absl::Span<const HomeChoice> choices,
                       const PlanOptions& options);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_LAYER_PLANNER_H_

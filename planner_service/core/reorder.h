// Homes: which node, and which rank of it, owns each expert of a layer for a step.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_
#define RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/topology.h"

namespace relibra {

// The homes of one layer that keep the heaviest node lightest, summed over micro-batches.
// totals: [M, E] load of each expert over all source ranks; current: [E] homes before.
// An expert that stays in its node stays on its rank. Returns `current` when nothing is better.
std::vector<int32_t> PlanHomes(const Topology& topology, absl::Span<const uint32_t> totals,
                               absl::Span<const int32_t> current);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_

// Homes: which node, and which rank of it, owns each expert of a layer for a step.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_
#define RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// For this many experts or fewer, the choices for every budget cost little.
inline constexpr int kFewExperts = 64;

// One way to place a layer's experts.
struct HomeChoice {
  std::vector<int32_t> home_rank;  // [E]
  int64_t moves = 0;               // experts whose rank differs from the current one
  // Sum over micro-batches of the load of the heaviest node (of the heaviest rank where there are
  // no replica slots): what replication inside nodes cannot mend.
  int64_t objective = 0;
};

// The ways worth considering, ascending in moves and strictly descending in objective. The first is
// always the current placement. With `every_budget`, there are choices for few moves too, each from
// the steepest swaps; without, at most the best one found follows the current one. For more than
// kFewExperts experts the last choice is the same with and without.
// totals: [M, E] load of each expert over all source ranks; current: [E] homes before.
std::vector<HomeChoice> HomeChoices(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current, Effort effort,
                                    bool every_budget, uint64_t seed);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_REORDER_H_

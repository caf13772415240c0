// Replicas of one (layer, micro-batch) with homes fixed.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_
#define RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// Alias filling (Walker): every rank is filled from its own load and few others.
// totals: [E] load of each expert over all source ranks; home_rank: [E].
// Returns the replicas ascending by (expert, rank); none when they would not lower the heaviest
// rank.
std::vector<Replica> PlanReplicas(const Topology& topology, absl::Span<const uint32_t> totals,
                                  absl::Span<const int32_t> home_rank);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_

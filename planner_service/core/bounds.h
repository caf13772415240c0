// Lower bounds: what no plan can beat.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_BOUNDS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_BOUNDS_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "planner_service/core/topology.h"

namespace relibra {

// The least imbalance that any homes, replicas and bridges reach in one micro-batch: the largest of
//  - the mean rank load, in whole tokens;
//  - the heaviest group of experts that no choice of homes avoids, over the ranks that can serve
//  it.
//    A group is a node's experts: its ranks serve it, and one more for each bridge that a node may
//    have; without slots, a rank's experts, and that rank. Of the 1 + groups (k - 1) hottest
//    experts some group has k, and with them as many of the coldest as make it full (k = 1: the
//    hottest);
// as a ratio to the mean. 1 for a micro-batch without tokens. totals: [E], experts dividing evenly
// over the ranks; bridges: as in PlanOptions. O(E log E + (E / groups)^2).
double LowerBound(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::optional<int> bridges);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_BOUNDS_H_

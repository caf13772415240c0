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
//  - the hottest expert over all ranks that can hold an instance of it: its home alone without
//  slots,
//    the ranks of one node, and one more for each bridge that a node may have;
// as a ratio to the mean. 1 for a micro-batch without tokens. totals: [E]; bridges: as in
// PlanOptions.
double LowerBound(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::optional<int> bridges);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_BOUNDS_H_

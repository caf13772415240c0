// Loads summed over source ranks: what reordering and replication look at.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_EXPERT_TOTALS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_EXPERT_TOTALS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/core/loads.h"

namespace relibra {

// [M, E] of one layer, (token, choice) pairs. INVALID_ARGUMENT naming layer, micro-batch and expert
// when a sum does not fit into 32 bits. One pass over the layer's loads, at memory speed.
absl::StatusOr<std::vector<uint32_t>> SumSources(const Loads& loads, int layer);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_EXPERT_TOTALS_H_

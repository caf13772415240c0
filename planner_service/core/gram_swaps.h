// The quadratic phase of reordering: a start that is good in all micro-batches at once.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_GRAM_SWAPS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_GRAM_SWAPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner_service/core/node_loads.h"

namespace relibra {

// Groups [E], of equal size, that make the sum over micro-batches of the squared shares of the
// groups small. Works on the Gram matrix C = X X^T of the experts' load vectors (each micro-batch
// normalised to its total), on which a swap is judged in O(1): starts from `start`, or greedily
// (largest vector first, into the open group it has least in common with), then swaps while any
// swap helps. O(E^2 M) for the matrix, O(E^2) a sweep.
std::vector<int32_t> GramSwaps(const ExpertLoads& loads, int groups,
                               const std::optional<std::vector<int32_t>>& start);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_GRAM_SWAPS_H_

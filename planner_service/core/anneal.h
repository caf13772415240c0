// The thorough search of reordering.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_ANNEAL_H_
#define RELIBRA_PLANNER_SERVICE_CORE_ANNEAL_H_

#include <cstdint>
#include <vector>

#include "planner_service/core/node_loads.h"

namespace relibra {

// Threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990) on the exact objective: random
// swaps are taken when they cost less than a threshold that falls to zero over `tries` tries, then
// exact descent. Returns the best groups seen, never worse than `start`. Same seed, same result.
std::vector<int32_t> Anneal(const ExpertLoads& loads, int groups, const std::vector<int32_t>& start,
                            int64_t tries, uint64_t seed);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_ANNEAL_H_

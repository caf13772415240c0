// Which copy of each expert is its home.
#ifndef RELIBRA_PLANNER_SERVICE_BASELINE_EVEN_HOMES_H_
#define RELIBRA_PLANNER_SERVICE_BASELINE_EVEN_HOMES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace relibra {

// Chooses a home for each expert among the ranks that hold a copy of it, at most `capacity` experts
// a rank: a matching by augmenting paths that places as many experts as can be placed.
// holders: [E], for each expert the ranks, ascending, at least one; current: [E], homes before.
// Experts whose current home holds a copy start there, in ascending order, while there is room;
// after that one moves only where another expert could not be placed otherwise. -1 where an expert
// found no room. O(E x copies).
std::vector<int32_t> ChooseHomes(absl::Span<const std::vector<int32_t>> holders,
                                 absl::Span<const int32_t> current, int ranks, int capacity);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_BASELINE_EVEN_HOMES_H_

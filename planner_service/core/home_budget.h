// Which layers may move how many homes.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_HOME_BUDGET_H_
#define RELIBRA_PLANNER_SERVICE_CORE_HOME_BUDGET_H_

#include <vector>

#include "planner_service/core/planner.h"
#include "planner_service/core/reorder.h"

namespace relibra {

// For each layer the index of the choice to take. A move must gain more than options.move_cost, all
// moves together stay within options.max_moves, and the moves that gain most a move come first; a
// larger budget takes the same moves and more.
std::vector<int> SpendMoves(const std::vector<std::vector<HomeChoice>>& layers,
                            const PlanOptions& options);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_HOME_BUDGET_H_

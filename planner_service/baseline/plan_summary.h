// The summary of a plan that the planner did not make.
#ifndef RELIBRA_PLANNER_SERVICE_BASELINE_PLAN_SUMMARY_H_
#define RELIBRA_PLANNER_SERVICE_BASELINE_PLAN_SUMMARY_H_

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"

namespace relibra {

// Works out every figure of plan.summary from homes, moves and replicas, apart from plan_seconds,
// which stays, and lower_bound, which is 1. current: [L][E], the homes before. O(loads).
void FillSummary(const Loads& loads, const Placement& current, ParallelFor parallel_for,
                 Plan& plan);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_BASELINE_PLAN_SUMMARY_H_

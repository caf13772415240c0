// An independent check of plans: it shares no code with the planner, only the value types.
//
// What holds of every plan, of every layer (for the splits see split_check.h):
//  - home_rank[e] is the home of expert e, and every rank is home to exactly E/P experts;
//  - moves are exactly the experts whose home differs from the placement before, ascending;
//  - a replica is not on its expert's home, a rank holds an expert once, its slot is one of 0..R-1
//    and used once in a micro-batch, and it serves no more than the expert's load (all replicas
//    together);
//  - a replica stands in its home's node, apart from bridges: these carry cross_node, stand in
//    another node, and keep expert, rank and slot in every micro-batch of the layer;
//  - the summary says what the plan does;
//  - the plan is not worse than doing nothing.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_PLAN_CHECK_H_
#define RELIBRA_PLANNER_SERVICE_CORE_PLAN_CHECK_H_

#include "absl/status/status.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// OK when `plan` keeps every rule above for these loads and the homes before the
// step (`current`, [L][E]); else INTERNAL (the plan, not the caller, is at fault) naming the layer,
// micro-batch, expert and rank of the first violation. Layers are numbered 0..L-1.
// `may_be_worse` lifts the last rule, for the plans of baselines.
// O(loads) time, O(E + P R) memory. Thread-safe.
absl::Status CheckPlan(const Loads& loads, const Topology& topology, const Placement& current,
                       const Plan& plan, bool may_be_worse = false);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_PLAN_CHECK_H_

// Baselines as plans, so that one evaluation and one file format serve all policies.
#ifndef RELIBRA_PLANNER_SERVICE_BASELINE_BASELINE_PLAN_H_
#define RELIBRA_PLANNER_SERVICE_BASELINE_BASELINE_PLAN_H_

#include "absl/status/statusor.h"
#include "planner_service/core/evaluate.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// `none`: homes stay as they are, no replicas. The arguments are PlanStep's, and so are the errors.
absl::StatusOr<Plan> PlanNone(const Loads& loads, const Topology& topology,
                              const Placement& current, ParallelFor parallel_for);

struct EplbPlanOptions {
  // Groups of consecutive experts that EPLB keeps in one node; 0: every expert is a group of its
  // own, which leaves it the most freedom. Not a multiple of the nodes: EPLB plans globally.
  int num_groups = 0;
};

struct EplbPlan {
  Plan plan;
  // OK when every rank is home to E/P experts, as plans must have it. Else it names the layer and
  // the rank: EPLB put so many copies of few experts there that no choice of homes is even. The
  // plan then keeps some experts on ranks that are full, and can be evaluated but not applied.
  absl::Status even_homes;
};

// `eplb`: EPLB with E + R x P physical experts, fed the step's own loads, summed over micro-batches
// and source ranks (an oracle: in production it has only the past). Its copies stay for the whole
// step. As a plan: one copy of each expert becomes its home, where possible the one it has now; the
// others are replicas in every micro-batch, bridges where they stand in another node; copies of one
// expert on one rank are merged. An expert's tokens are shared evenly by its copies, in whole
// tokens. A layer without tokens stays as it is. Errors as PlanStep's, and RunEplb's for
// num_groups.
absl::StatusOr<EplbPlan> PlanEplb(const Loads& loads, const Topology& topology,
                                  const Placement& current, const EplbPlanOptions& options,
                                  ParallelFor parallel_for);

// `ideal`: every rank computes exactly the mean, and the tokens travel as under `none` but evenly
// over the ranks; no moves, no copies. A reference point: no plan is it.
PolicyResult IdealResult(const Topology& topology, const PolicyResult& none);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_BASELINE_BASELINE_PLAN_H_

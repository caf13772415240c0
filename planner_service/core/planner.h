// Plans a step: homes (reordering), replicas of every micro-batch, bridges.
//
//   PlanOptions options;
//   absl::StatusOr<Plan> plan =
//       PlanStep(loads, topology, LinearPlacement(topology, L, E), options, InOrder);
#ifndef RELIBRA_PLANNER_SERVICE_CORE_PLANNER_H_
#define RELIBRA_PLANNER_SERVICE_CORE_PLANNER_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

enum class Effort {
  kFast,      // milliseconds for a whole batch
  kThorough,  // at most 20 times as long, for the last per cent
};

struct PlanOptions {
  Effort effort = Effort::kFast;
  std::optional<int> bridges;        // most bridges a node (0: none); absent: the planner decides
  std::optional<int64_t> max_moves;  // most experts, over all layers, that may change their home
  double move_cost = 0;              // tokens that moving one expert's home is worth
  double replica_cost = 0;           // tokens that making one replica is worth
  uint64_t seed = 0;
};

// Calls task(i) for every i in [0, n), in any order, perhaps at once on several threads, and
// returns when all are done. The planner has no threads of its own; its caller lends them through
// this.
using ParallelFor = absl::FunctionRef<void(int n, absl::FunctionRef<void(int)> task)>;

// The ParallelFor of a caller without threads.
void InOrder(int n, absl::FunctionRef<void(int)> task);

// Plans one step of one EP group. loads.shape().sources must be topology.num_ranks(); `current`
// [L][E] are the homes before the step, E/P on every rank; INVALID_ARGUMENT otherwise, and for sums
// that overflow 32 bits. The same input gives the same plan whatever the ParallelFor.
absl::StatusOr<Plan> PlanStep(const Loads& loads, const Topology& topology,
                              const Placement& current, const PlanOptions& options,
                              ParallelFor parallel_for);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_PLANNER_H_

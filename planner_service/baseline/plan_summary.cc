#include "planner_service/baseline/plan_summary.h"

#include "planner_service/core/evaluate.h"

namespace relibra {
namespace {

// The plan that leaves homes as they are in `placement`, without replicas.
Plan Unreplicated(const Topology& topology, const Placement& placement, int micro_batches) {
  Plan plan;
  plan.topology = topology;
  for (const std::vector<int32_t>& homes : placement) {
    plan.layers.push_back({.home_rank = homes,
                           .moves = {},
                           .replicas = std::vector<std::vector<Replica>>(micro_batches)});
  }
  return plan;
}

}  // namespace

void FillSummary(const Loads& loads, const Placement& current, ParallelFor parallel_for,
                 Plan& plan) {
  Placement homes;
  for (const LayerPlan& layer : plan.layers) homes.push_back(layer.home_rank);
  const int micro_batches = loads.shape().micro_batches;
  const auto evaluate = [&](const Plan& of) { return Evaluate("", loads, of, {}, parallel_for); };
  const PolicyResult before = evaluate(Unreplicated(plan.topology, current, micro_batches));
  const PolicyResult reordered = evaluate(Unreplicated(plan.topology, homes, micro_batches));
  const PolicyResult after = evaluate(plan);
  plan.summary = {.imbalance_before = before.imbalance_mean,
                  .imbalance_after = after.imbalance_mean,
                  .lower_bound = 1,
                  .node_imbalance_after = reordered.node_imbalance_mean,
                  .plan_seconds = plan.summary.plan_seconds,
                  .moves = after.step.moves,
                  .cross_node_moves = after.step.cross_node_moves,
                  .replicas = after.copies,
                  .bridges = after.step.bridges,
                  .replicas_kept = after.copies - after.fetched,
                  .tokens = after.pairs};
}

}  // namespace relibra

// What a plan makes of its loads, counted from the plan alone.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_CORE_PLAN_MEASURES_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_CORE_PLAN_MEASURES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// [M, E] of one layer, summed over source ranks.
inline std::vector<uint32_t> TotalsOf(const Loads& loads, int layer) {
  const LoadShape& shape = loads.shape();
  std::vector<uint32_t> totals(size_t{1} * shape.micro_batches * shape.experts);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int s = 0; s < shape.sources; ++s) {
      for (int e = 0; e < shape.experts; ++e) {
        totals[m * shape.experts + e] += loads.At(m, layer)[s * shape.experts + e];
      }
    }
  }
  return totals;
}

// Sum over the micro-batches of a layer of the load of the heaviest rank.
inline int64_t HeaviestRanks(const Loads& loads, const Topology& topology, int layer,
                             const LayerPlan& plan) {
  const std::vector<uint32_t> totals = TotalsOf(loads, layer);
  const size_t experts = plan.home_rank.size();
  int64_t sum = 0;
  for (size_t m = 0; m < plan.replicas.size(); ++m) {
    std::vector<int64_t> load(topology.num_ranks());
    for (size_t e = 0; e < experts; ++e) load[plan.home_rank[e]] += totals[m * experts + e];
    for (const Replica& replica : plan.replicas[m]) {
      load[plan.home_rank[replica.expert]] -= replica.tokens;
      load[replica.rank] += replica.tokens;
    }
    sum += *std::max_element(load.begin(), load.end());
  }
  return sum;
}

inline int64_t HeaviestRanks(const Loads& loads, const Plan& plan) {
  int64_t sum = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    sum += HeaviestRanks(loads, plan.topology, static_cast<int>(l), plan.layers[l]);
  }
  return sum;
}

// Every expert on its current home, no replicas.
inline int64_t HeaviestRanksWithoutPlan(const Loads& loads, const Topology& topology,
                                        const Placement& current) {
  int64_t sum = 0;
  for (size_t l = 0; l < current.size(); ++l) {
    LayerPlan plan;
    plan.home_rank = current[l];
    plan.replicas.resize(loads.shape().micro_batches);
    sum += HeaviestRanks(loads, topology, static_cast<int>(l), plan);
  }
  return sum;
}

// What the planner weighs: tokens at the heaviest ranks, and what changes are worth.
inline double CostOf(const Loads& loads, const Plan& plan, const PlanOptions& options) {
  const PlanSummary& s = plan.summary;
  return static_cast<double>(HeaviestRanks(loads, plan)) +
         options.move_cost * static_cast<double>(s.moves + s.bridges) +
         options.replica_cost * static_cast<double>(s.replicas - s.replicas_kept);
}

}  // namespace relibra

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_CORE_PLAN_MEASURES_H_

#include "planner_service/core/plan.h"

namespace relibra {

Placement LinearPlacement(const Topology& topology, int num_layers, int num_experts) {
  const int experts_per_rank = num_experts / topology.num_ranks();
  std::vector<int32_t> homes(num_experts);
  for (int e = 0; e < num_experts; ++e) homes[e] = e / experts_per_rank;
  return Placement(num_layers, homes);
}

}  // namespace relibra

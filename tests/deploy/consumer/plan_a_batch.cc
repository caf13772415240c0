// Plans a small batch with the installed library; prints imbalance before and after.
#include <iostream>

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"
#include "relibra/v1/planner.grpc.pb.h"

int main() {
  const relibra::Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  auto loads =
      relibra::Loads::Create({.micro_batches = 1, .layers = 1, .sources = 2, .experts = 4});
  if (!loads.ok()) return 1;
  // Experts 0 and 1 live on rank 0 and get all 40 tokens of each source rank: max 80, mean 40.
  const auto counts = loads->Mutable(0, 0);
  for (int source = 0; source < 2; ++source) {
    counts[source * 4] = 20;
    counts[source * 4 + 1] = 20;
  }
  const auto plan = relibra::PlanStep(*loads, topology, relibra::LinearPlacement(topology, 1, 4),
                                      {}, relibra::InOrder);
  if (!plan.ok()) {
    std::cerr << plan.status() << "\n";
    return 1;
  }
  relibra::v1::GetPlanRequest request;
  request.set_pass("update");
  std::cout << plan->summary.imbalance_before << " " << plan->summary.imbalance_after << " "
            << request.pass() << "\n";
  return 0;
}

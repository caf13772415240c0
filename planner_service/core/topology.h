// The GPUs of one expert-parallel (EP) group.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_TOPOLOGY_H_
#define RELIBRA_PLANNER_SERVICE_CORE_TOPOLOGY_H_

#include "absl/status/status.h"

namespace relibra {

// Ranks are numbered node by node: rank = node * gpus_per_node + local.
struct Topology {
  int nodes = 1;
  int gpus_per_node = 1;
  int replica_slots = 2;  // R: replica slots a rank

  int num_ranks() const { return nodes * gpus_per_node; }
  int NodeOf(int rank) const { return rank / gpus_per_node; }

  friend bool operator==(const Topology&, const Topology&) = default;
};

// OK when every field is in range (1 <= nodes, gpus_per_node; 0 <= replica_slots; at most 65,535
// ranks) and num_experts >= 1 divides evenly over the ranks; else INVALID_ARGUMENT naming the
// field.
absl::Status Validate(const Topology& topology, int num_experts);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_TOPOLOGY_H_

// The size of things in one EP group, the same on all its ranks.
#ifndef RELIBRA_WORKER_AGENT_GROUP_SHAPE_H_
#define RELIBRA_WORKER_AGENT_GROUP_SHAPE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace relibra::agent {

// Layers are numbered 0..L-1 in the order of `layer_ids`. Every rank has E/P home slots a layer,
// then R replica slots: together its physical slots 0 .. E/P + R - 1.
struct GroupShape {
  int nodes = 1;
  int gpus_per_node = 1;
  int replica_slots = 0;                 // R
  int experts = 0;                       // E
  std::vector<uint32_t> layer_ids = {};  // [L], the model's own numbers, ascending

  int ranks() const { return nodes * gpus_per_node; }  // P
  int layers() const { return static_cast<int>(layer_ids.size()); }
  int NodeOf(int rank) const { return rank / gpus_per_node; }
  int home_slots() const { return experts / ranks(); }
  int physical_slots() const { return home_slots() + replica_slots; }

  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// OK when every field is in range and E divides evenly; else INVALID_ARGUMENT naming the field.
absl::Status Validate(const GroupShape& shape);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_GROUP_SHAPE_H_

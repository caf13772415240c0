// DeepSeek's expert load balancer (EPLB), written from its published description. It is what
// inference engines use and the baseline that plans are measured against.
//
// It is given one load an expert, so it makes one placement for all micro-batches:
//  1. groups of experts are packed onto nodes, so that nodes carry alike;
//  2. in each node, while slots are left, the expert with the most load a copy gets another copy;
//  3. in each node, the copies are packed onto GPUs.
// Packing takes items by descending load, each into the lightest pack that still has room. Where
// the groups do not divide evenly over the nodes, everything is done as if there were one node and
// one group ("global").
#ifndef RELIBRA_PLANNER_SERVICE_BASELINE_EPLB_H_
#define RELIBRA_PLANNER_SERVICE_BASELINE_EPLB_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace relibra {

struct EplbShape {
  int num_replicas = 0;  // physical experts over all GPUs: logical experts and redundant copies
  int num_groups = 1;    // of consecutive logical experts; a group stays in one node
  int num_nodes = 1;
  int num_gpus = 1;
};

struct EplbLayer {
  // [num_replicas], the logical expert of each physical one; GPU g has num_replicas / num_gpus
  // entries from g * num_replicas / num_gpus on.
  std::vector<int32_t> physical_to_logical;
  std::vector<int32_t> logical_count;  // [E], copies of each expert, at least 1
};

// Places one layer. weights: [E], the load of each logical expert. As the public implementation it
// computes in float32; ties go to the lower index. It knows nothing of the placement before and may
// put two copies of an expert on one GPU. INVALID_ARGUMENT naming the field when the counts do not
// divide. O(E log E + redundant copies * E / nodes + copies * GPUs / nodes).
absl::StatusOr<EplbLayer> RunEplb(absl::Span<const float> weights, const EplbShape& shape);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_BASELINE_EPLB_H_

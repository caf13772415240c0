// Bridges: replicas in the next node of a ring that stay for a whole step. They level what in-node
// replication cannot: the fluctuation of whole nodes from micro-batch to micro-batch.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_BRIDGE_H_
#define RELIBRA_PLANNER_SERVICE_CORE_BRIDGE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/topology.h"

namespace relibra {

// An expert of `from_node` that also lives on a rank of the next node, (from_node + 1) mod nodes.
struct Bridge {
  int32_t expert = 0;
  int32_t from_node = 0;
  int32_t rank = 0;
  int32_t slot = 0;
};

// The `per_node` hottest experts of each node (by load over all micro-batches; fewer where a node
// has not that many with any load), each on another rank of the next node: the least loaded ones,
// in their highest free slot. Empty when there are fewer than two nodes or no slots. Ascending by
// from_node. totals: [M, E]; home_rank: [E].
std::vector<Bridge> ChooseBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                  absl::Span<const int32_t> home_rank, int per_node);

// The least target T >= ceil(total / ranks) for which some flow over the ring brings every node to
// at most T tokens a rank, and the smallest such flow, written to tokens[b] for each bridge b (at
// most the expert's load, and at most T). A flow over a ring that levels the nodes is settled by
// one number, so each T is decided in O(nodes + bridges). totals: [E] of one micro-batch.
int64_t LevelNodes(const Topology& topology, absl::Span<const uint32_t> totals,
                   absl::Span<const int32_t> home_rank, absl::Span<const Bridge> bridges,
                   std::vector<int64_t>& tokens);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_BRIDGE_H_

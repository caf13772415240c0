// Which tokens of which source rank each instance of a replicated expert serves.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_SPLIT_H_
#define RELIBRA_PLANNER_SERVICE_CORE_SPLIT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// Splits the tokens of every expert that has a replica over its instances, in whole tokens: each
// instance gets exactly its quota, each source rank places exactly its load. A token goes to its
// own rank first, then to its own node, then anywhere, in ascending order of ranks; this is the
// most tokens that can stay on their rank, and then in their node.
//
// loads: [S, E] of the (micro-batch, layer), with S == topology.num_ranks();
// home_rank: [E]; replicas: ascending by (expert, rank), tokens as planned for these loads.
// out: replaced by the splits, ascending by (expert, source rank, rank), without zero rows. The
// caller keeps it between calls so that no call need allocate. O(sources x instances of replicated
// experts). Thread-safe.
void SplitTokens(const Topology& topology, absl::Span<const uint32_t> loads,
                 absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas,
                 std::vector<Split>& out);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_SPLIT_H_

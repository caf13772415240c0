// From nodes to ranks: where in its node each expert lives.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_RANK_PLACEMENT_H_
#define RELIBRA_PLANNER_SERVICE_CORE_RANK_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/node_loads.h"
#include "planner_service/core/topology.h"

namespace relibra {

// Renames groups so that as many experts as possible keep the group they had. Largest overlap
// first, ties to the lowest group. node, before: [E], 0..groups-1.
void KeepNames(int groups, absl::Span<const int32_t> before, std::vector<int32_t>& node);

// Exchanges moved experts where that brings one home again and costs nothing.
void ReturnNeedlessMoves(absl::Span<const int32_t> before, NodeLoads& loads);

// Home ranks [E] for the given nodes: an expert that stays in its node stays on its rank, newcomers
// fill the vacancies so that the ranks of a node are alike in all micro-batches.
std::vector<int32_t> PlaceOnRanks(const Topology& topology, const ExpertLoads& loads,
                                  absl::Span<const int32_t> node,
                                  absl::Span<const int32_t> current);

// Moves experts between the ranks of a node where that makes the node's ranks clearly more alike,
// so that fewer replicas are needed: the heaviest rank, summed over micro-batches, falls by 5 % or
// more.
void BalanceRanks(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::vector<int32_t>& home_rank);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_RANK_PLACEMENT_H_

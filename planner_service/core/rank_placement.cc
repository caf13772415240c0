#include "planner_service/core/rank_placement.h"

#include <algorithm>
#include <cstddef>

#include "planner_service/core/gram_swaps.h"

namespace relibra {

void KeepNames(int groups, absl::Span<const int32_t> before, std::vector<int32_t>& node) {
  std::vector<int> overlap(size_t{1} * groups * groups);
  for (size_t e = 0; e < node.size(); ++e) ++overlap[size_t{1} * node[e] * groups + before[e]];
  std::vector<size_t> order(overlap.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return overlap[a] > overlap[b]; });
  std::vector<int32_t> name(groups, -1);
  std::vector<bool> taken(groups);
  for (size_t i : order) {
    const size_t from = i / groups, to = i % groups;
    if (name[from] >= 0 || taken[to]) continue;
    name[from] = static_cast<int32_t>(to);
    taken[to] = true;
  }
  for (int32_t& n : node) n = name[n];
}

void ReturnNeedlessMoves(absl::Span<const int32_t> before, NodeLoads& loads) {
  const int experts = static_cast<int>(before.size());
  for (bool better = true; better;) {
    better = false;
    for (int e = 0; e < experts; ++e) {
      if (loads.NodeOf(e) == before[e]) continue;
      for (int f = 0; f < experts; ++f) {
        // f has to leave e's old node, and must not have been at home there.
        if (loads.NodeOf(f) != before[e] || before[f] == before[e]) continue;
        if (loads.ObjectiveAfterSwap(e, f) > loads.Objective()) continue;
        loads.Swap(e, f);
        better = true;
        break;
      }
    }
  }
}

std::vector<int32_t> PlaceOnRanks(const Topology& topology, const ExpertLoads& loads,
                                  absl::Span<const int32_t> node,
                                  absl::Span<const int32_t> current) {
  const int experts = loads.experts();
  const int stride = loads.stride();
  std::vector<int32_t> homes(current.begin(), current.end());
  std::vector<int> room(topology.num_ranks(), experts / topology.num_ranks());
  std::vector<int64_t> rank_load(size_t{1} * topology.num_ranks() * stride);
  std::vector<std::pair<int64_t, int32_t>> newcomers;  // (-weight, expert)
  const auto put = [&](int expert, int rank) {
    homes[expert] = rank;
    --room[rank];
    for (int m = 0; m < stride; ++m) {
      rank_load[size_t{1} * rank * stride + m] += loads.Row(expert)[m];
    }
  };
  for (int e = 0; e < experts; ++e) {
    if (node[e] == topology.NodeOf(current[e])) {
      put(e, current[e]);
    } else {
      int64_t weight = 0;
      for (int m = 0; m < stride; ++m) weight += loads.Row(e)[m];
      newcomers.push_back({-weight, e});
    }
  }
  std::sort(newcomers.begin(), newcomers.end());
  for (const auto& [weight, e] : newcomers) {
    int best = -1;
    double best_common = 0;
    const int first = node[e] * topology.gpus_per_node;
    for (int rank = first; rank < first + topology.gpus_per_node; ++rank) {
      if (room[rank] == 0) continue;
      double common = 0;
      for (int m = 0; m < stride; ++m) {
        common += static_cast<double>(rank_load[size_t{1} * rank * stride + m]) * loads.Row(e)[m];
      }
      if (best < 0 || common < best_common) best = rank, best_common = common;
    }
    put(e, best);
  }
  return homes;
}

void BalanceRanks(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::vector<int32_t>& home_rank) {
  constexpr double kClearly = 0.95;
  const int experts = static_cast<int>(home_rank.size());
  const int gpus = topology.gpus_per_node;
  const int in_node = experts / topology.nodes;
  if (gpus == 1 || in_node == gpus) return;
  const size_t micro_batches = totals.size() / experts;
  for (int n = 0; n < topology.nodes; ++n) {
    std::vector<int> members;
    std::vector<int32_t> before;
    for (int e = 0; e < experts; ++e) {
      if (topology.NodeOf(home_rank[e]) != n) continue;
      members.push_back(e);
      before.push_back(home_rank[e] - n * gpus);
    }
    std::vector<uint32_t> node_totals;
    node_totals.reserve(micro_batches * in_node);
    for (size_t m = 0; m < micro_batches; ++m) {
      for (int e : members) node_totals.push_back(totals[m * experts + e]);
    }
    const ExpertLoads loads(node_totals, in_node);
    const NodeLoads now(loads, gpus, before);
    std::vector<int32_t> found = GramSwaps(loads, gpus, before);
    KeepNames(gpus, before, found);
    const NodeLoads then(loads, gpus, found);
    if (static_cast<double>(then.Objective()) > kClearly * static_cast<double>(now.Objective())) {
      continue;
    }
    for (int i = 0; i < in_node; ++i) home_rank[members[i]] = n * gpus + found[i];
  }
}

}  // namespace relibra

#include "planner_service/core/reorder.h"

#include <algorithm>
#include <numeric>

namespace relibra {
namespace {

// Node loads of one assignment of experts to nodes, and the objective on them.
struct NodeLoads {
  int nodes, experts, micro_batches;
  absl::Span<const uint32_t> totals;  // [M, E]
  std::vector<int32_t> node;          // [E]
  std::vector<int64_t> load;          // [M, N]

  void Recompute() {
    load.assign(micro_batches * nodes, 0);
    for (int m = 0; m < micro_batches; ++m) {
      for (int e = 0; e < experts; ++e) load[m * nodes + node[e]] += totals[m * experts + e];
    }
  }
  int64_t Objective() const {
    int64_t sum = 0;
    for (int m = 0; m < micro_batches; ++m) {
      sum += *std::max_element(load.begin() + m * nodes, load.begin() + (m + 1) * nodes);
    }
    return sum;
  }
  // What swapping experts e and f (of different nodes) adds to the objective. O(M N).
  int64_t SwapCost(int e, int f) const {
    const int a = node[e], b = node[f];
    int64_t cost = 0;
    for (int m = 0; m < micro_batches; ++m) {
      const int64_t* row = &load[m * nodes];
      const int64_t shift = int64_t{totals[m * experts + f]} - totals[m * experts + e];
      int64_t before = 0, after = 0;
      for (int n = 0; n < nodes; ++n) {
        before = std::max(before, row[n]);
        after = std::max(after, row[n] + (n == a ? shift : n == b ? -shift : 0));
      }
      cost += after - before;
    }
    return cost;
  }
  void Swap(int e, int f) {
    const int a = node[e], b = node[f];
    for (int m = 0; m < micro_batches; ++m) {
      const int64_t shift = int64_t{totals[m * experts + f]} - totals[m * experts + e];
      load[m * nodes + a] += shift;
      load[m * nodes + b] -= shift;
    }
    std::swap(node[e], node[f]);
  }
  // First-improvement swaps until none helps, at most `passes` over all pairs.
  void Descend(int passes) {
    for (bool better = true; better && passes > 0; --passes) {
      better = false;
      for (int e = 0; e < experts; ++e) {
        for (int f = e + 1; f < experts; ++f) {
          if (node[e] == node[f] || SwapCost(e, f) >= 0) continue;
          Swap(e, f);
          better = true;
        }
      }
    }
  }
};

// Heaviest expert first, into the open node where the heaviest node grows least.
void PlaceGreedily(NodeLoads& loads) {
  const int room = loads.experts / loads.nodes;
  std::vector<int64_t> weight(loads.experts);
  for (int m = 0; m < loads.micro_batches; ++m) {
    for (int e = 0; e < loads.experts; ++e) weight[e] += loads.totals[m * loads.experts + e];
  }
  std::vector<int> order(loads.experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  std::vector<int> used(loads.nodes);
  loads.load.assign(loads.micro_batches * loads.nodes, 0);
  for (int e : order) {
    int best = -1;
    double best_cost = 0;
    for (int n = 0; n < loads.nodes; ++n) {
      if (used[n] == room) continue;
      double cost = 0;
      for (int m = 0; m < loads.micro_batches; ++m) {
        cost += static_cast<double>(loads.load[m * loads.nodes + n]) *
                loads.totals[m * loads.experts + e];
      }
      if (best < 0 || cost < best_cost) best = n, best_cost = cost;
    }
    loads.node[e] = best;
    ++used[best];
    for (int m = 0; m < loads.micro_batches; ++m) {
      loads.load[m * loads.nodes + best] += loads.totals[m * loads.experts + e];
    }
  }
}

// Renames nodes so that as many experts as possible stay: largest overlap first.
void KeepNames(const Topology& topology, absl::Span<const int32_t> current,
               std::vector<int32_t>& node) {
  const int nodes = topology.nodes;
  std::vector<int> overlap(nodes * nodes);
  for (size_t e = 0; e < node.size(); ++e) ++overlap[node[e] * nodes + topology.NodeOf(current[e])];
  std::vector<int> name(nodes, -1);
  std::vector<bool> taken(nodes);
  for (int round = 0; round < nodes; ++round) {
    int best = -1;
    for (int i = 0; i < nodes * nodes; ++i) {
      if (name[i / nodes] >= 0 || taken[i % nodes]) continue;
      if (best < 0 || overlap[i] > overlap[best]) best = i;
    }
    name[best / nodes] = best % nodes;
    taken[best % nodes] = true;
  }
  for (int32_t& n : node) n = name[n];
}

}  // namespace

std::vector<int32_t> PlanHomes(const Topology& topology, absl::Span<const uint32_t> totals,
                               absl::Span<const int32_t> current) {
  std::vector<int32_t> homes(current.begin(), current.end());
  if (topology.nodes == 1) return homes;
  const int experts = static_cast<int>(current.size());
  NodeLoads before{topology.nodes,
                   experts,
                   static_cast<int>(totals.size()) / experts,
                   totals,
                   std::vector<int32_t>(experts),
                   {}};
  for (int e = 0; e < experts; ++e) before.node[e] = topology.NodeOf(current[e]);
  before.Recompute();
  NodeLoads near = before;
  near.Descend(4);
  NodeLoads fresh = before;
  PlaceGreedily(fresh);
  fresh.Descend(4);
  NodeLoads& best = fresh.Objective() < near.Objective() ? fresh : near;
  if (best.Objective() >= before.Objective()) return homes;
  KeepNames(topology, current, best.node);

  // Experts that stay in their node keep their rank; the others fill the vacancies in order.
  std::vector<int> room(topology.num_ranks(), experts / topology.num_ranks());
  for (int e = 0; e < experts; ++e) {
    if (best.node[e] == topology.NodeOf(current[e])) --room[current[e]];
  }
  for (int e = 0; e < experts; ++e) {
    if (best.node[e] == topology.NodeOf(current[e])) continue;
    int rank = best.node[e] * topology.gpus_per_node;
    while (room[rank] == 0) ++rank;
    --room[rank];
    homes[e] = rank;
  }
  return homes;
}

}  // namespace relibra

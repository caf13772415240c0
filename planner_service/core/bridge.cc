#include "planner_service/core/bridge.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace relibra {
namespace {

// The smallest flow that brings every node of the ring to at most `cap`, or false. Node n hands
// flow[n] to node n + 1: flow[n] >= flow[n - 1] + load[n] - cap, 0 <= flow[n] <= most[n]. The
// smallest solution is the least fixed point of these; when one exists, two rounds of the ring
// reach it.
bool SmallestFlow(const std::vector<int64_t>& load, const std::vector<int64_t>& most, int64_t cap,
                  std::vector<int64_t>& flow) {
  const int nodes = static_cast<int>(load.size());
  std::fill(flow.begin(), flow.end(), 0);
  for (int step = 0; step < 2 * nodes; ++step) {
    const int n = step % nodes;
    const int64_t in = flow[(n + nodes - 1) % nodes];
    flow[n] = std::max(flow[n], in + load[n] - cap);
    if (flow[n] > most[n]) return false;
  }
  for (int n = 0; n < nodes; ++n) {
    if (load[n] - flow[n] + flow[(n + nodes - 1) % nodes] > cap) return false;
  }
  return true;
}

// For each bridge the number of earlier ones of the same expert; they have its node in common.
std::vector<int32_t> EarlierOfExpert(absl::Span<const Bridge> bridges) {
  std::vector<int32_t> earlier(bridges.size());
  for (size_t b = 0; b < bridges.size(); ++b) {
    for (size_t i = b; i-- > 0 && bridges[i].from_node == bridges[b].from_node;) {
      earlier[b] += bridges[i].expert == bridges[b].expert;
    }
  }
  return earlier;
}

// Deals each node's flow to its bridges, none more than `target`: first what fits beside the load
// of the bridge's rank, so that the rank need not give load of its own away; then the rest.
void DealFlow(absl::Span<const uint32_t> totals, absl::Span<const Bridge> bridges,
              const std::vector<int64_t>& rank_load, int64_t target, std::vector<int64_t>& flow,
              std::vector<int64_t>& tokens) {
  tokens.assign(bridges.size(), 0);
  for (const bool beside : {true, false}) {
    size_t first = 0;  // of the bridges from the same node
    for (size_t b = 0; b < bridges.size(); ++b) {
      const int32_t node = bridges[b].from_node;
      if (bridges[first].from_node != node) first = b;
      int64_t of_expert = totals[bridges[b].expert];
      for (size_t i = first; i < bridges.size() && bridges[i].from_node == node; ++i) {
        if (bridges[i].expert == bridges[b].expert) of_expert -= tokens[i];
      }
      const int64_t room =
          target - (beside ? std::min(target, rank_load[bridges[b].rank]) : tokens[b]);
      int64_t& left = flow[node];
      const int64_t more = std::min({left, of_expert, room});
      tokens[b] += more;
      left -= more;
    }
  }
}

}  // namespace

std::vector<Bridge> ChooseBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                  absl::Span<const int32_t> home_rank, int per_node) {
  std::vector<Bridge> bridges;
  if (topology.nodes < 2 || topology.replica_slots == 0) return bridges;
  const int experts = static_cast<int>(home_rank.size());
  std::vector<int64_t> weight(experts), rank_load(topology.num_ranks());
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    for (int e = 0; e < experts; ++e) weight[e] += totals[begin + e];
  }
  for (int e = 0; e < experts; ++e) rank_load[home_rank[e]] += weight[e];
  // What one more instance would take off an expert: a rank takes no more than its share of all.
  const int64_t share =
      std::accumulate(weight.begin(), weight.end(), int64_t{0}) / topology.num_ranks();
  const int most = std::min(per_node, topology.gpus_per_node);
  std::vector<int> ranks(topology.gpus_per_node);
  for (int n = 0; n < topology.nodes; ++n) {
    std::iota(ranks.begin(), ranks.end(), (n + 1) % topology.nodes * topology.gpus_per_node);
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int a, int b) { return rank_load[a] < rank_load[b]; });
    for (int made = 0; made < most; ++made) {
      int hottest = -1;
      for (int e = 0; e < experts; ++e) {
        if (topology.NodeOf(home_rank[e]) != n || weight[e] <= 0) continue;
        if (hottest < 0 || weight[e] > weight[hottest]) hottest = e;
      }
      if (hottest < 0) break;
      weight[hottest] -= share;
      bridges.push_back({hottest, n, ranks[made], topology.replica_slots - 1});
    }
  }
  return bridges;
}

int64_t LevelNodes(const Topology& topology, absl::Span<const uint32_t> totals,
                   absl::Span<const int32_t> home_rank, absl::Span<const Bridge> bridges,
                   std::vector<int64_t>& tokens) {
  std::vector<int64_t> load(topology.nodes), most(topology.nodes), flow(topology.nodes);
  std::vector<int64_t> rank_load(topology.num_ranks());
  for (size_t e = 0; e < totals.size(); ++e) rank_load[home_rank[e]] += totals[e];
  for (int rank = 0; rank < topology.num_ranks(); ++rank) {
    load[topology.NodeOf(rank)] += rank_load[rank];
  }
  const std::vector<int32_t> earlier = EarlierOfExpert(bridges);
  const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
  const int64_t gpus = topology.gpus_per_node;
  int64_t low = (total + topology.num_ranks() - 1) / topology.num_ranks();
  int64_t high = std::max(low, (*std::max_element(load.begin(), load.end()) + gpus - 1) / gpus);
  const auto reaches = [&](int64_t target) {
    std::fill(most.begin(), most.end(), 0);
    for (size_t b = 0; b < bridges.size(); ++b) {
      const int64_t left = totals[bridges[b].expert] - earlier[b] * target;
      most[bridges[b].from_node] += std::clamp<int64_t>(left, 0, target);
    }
    return SmallestFlow(load, most, target * gpus, flow);
  };
  // Most micro-batches level at once, so the lowest target is tried before each halving.
  while (low < high) {
    if (reaches(low)) break;
    if (++low == high) break;
    const int64_t middle = low + (high - low) / 2;
    if (reaches(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  reaches(low);
  DealFlow(totals, bridges, rank_load, low, flow, tokens);
  return low;
}

}  // namespace relibra

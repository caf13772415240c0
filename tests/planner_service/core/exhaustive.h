// Optima of tiny instances by trying everything: what the planner's heuristics are held to. Shares
// no code with the planner.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_CORE_EXHAUSTIVE_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_CORE_EXHAUSTIVE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace relibra::exhaustive {

// One expert of a node: its home (0..gpus-1) and its tokens.
struct NodeExpert {
  int home = 0;
  int64_t tokens = 0;
};

// The least max load when expert i may be served by the ranks of the bit set instances[i]. By
// Hall's condition an integral T is enough exactly when, for every set U of ranks, the experts
// confined to U have at most |U| T tokens.
inline int64_t LeastMaxOf(int gpus, const std::vector<NodeExpert>& experts,
                          const std::vector<unsigned>& instances) {
  int64_t least = 0;
  for (unsigned set = 1; set < 1u << gpus; ++set) {
    int64_t confined = 0, size = 0;
    for (unsigned bits = set; bits != 0; bits &= bits - 1) ++size;
    for (size_t i = 0; i < experts.size(); ++i) {
      if ((instances[i] & ~set) == 0) confined += experts[i].tokens;
    }
    least = std::max(least, (confined + size - 1) / size);
  }
  return least;
}

// The least max load over every way to put replicas into `slots` slots a rank.
inline int64_t LeastMaxLoad(int gpus, int slots, const std::vector<NodeExpert>& experts) {
  std::vector<unsigned> instances;
  instances.reserve(experts.size());
  for (const NodeExpert& expert : experts) instances.push_back(1u << expert.home);
  int64_t least = std::numeric_limits<int64_t>::max();
  // Fills the slots of rank `gpu` from expert `from` on; a slot left empty is never better.
  std::function<void(int, int, int)> fill = [&](int gpu, int from, int left) {
    if (gpu == gpus) {
      least = std::min(least, LeastMaxOf(gpus, experts, instances));
      return;
    }
    bool placed = false;
    for (int i = from; left > 0 && i < static_cast<int>(experts.size()); ++i) {
      if (experts[i].home == gpu) continue;
      placed = true;
      instances[i] |= 1u << gpu;
      fill(gpu, i + 1, left - 1);
      instances[i] &= ~(1u << gpu);
    }
    if (!placed) fill(gpu + 1, 0, slots);
  };
  fill(0, 0, slots);
  return least;
}

// The same for whole placements: the heaviest node, replicas inside nodes. totals, homes: [E].
inline int64_t LeastMaxLoad(int nodes, int gpus, int slots, absl::Span<const uint32_t> totals,
                            absl::Span<const int32_t> homes) {
  int64_t most = 0;
  for (int n = 0; n < nodes; ++n) {
    std::vector<NodeExpert> experts;
    for (size_t e = 0; e < homes.size(); ++e) {
      if (homes[e] / gpus == n) experts.push_back({homes[e] % gpus, totals[e]});
    }
    most = std::max(most, LeastMaxLoad(gpus, slots, experts));
  }
  return most;
}

// The least sum over micro-batches of the max load, over every placement with equally many experts
// a rank. totals: [M, E].
inline int64_t LeastSumOfMaxLoads(int nodes, int gpus, int slots, absl::Span<const uint32_t> totals,
                                  int experts) {
  const int ranks = nodes * gpus, room = experts / ranks;
  int64_t least = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> homes(experts);
  std::vector<int> used(ranks);
  // [M] of one node, by the experts of each of its ranks (as bits, in ascending order).
  std::map<std::vector<unsigned>, std::vector<int64_t>> of_node;
  const auto loads_of = [&](int node) -> const std::vector<int64_t>& {
    std::vector<unsigned> key(gpus);
    for (int e = 0; e < experts; ++e) {
      if (homes[e] / gpus == node) key[homes[e] % gpus] |= 1u << e;
    }
    std::sort(key.begin(), key.end());
    auto [at, is_new] = of_node.try_emplace(key);
    for (size_t begin = 0; is_new && begin < totals.size(); begin += experts) {
      std::vector<NodeExpert> here;
      for (int g = 0; g < gpus; ++g) {
        for (int e = 0; e < experts; ++e) {
          if (key[g] >> e & 1) here.push_back({g, totals[begin + e]});
        }
      }
      at->second.push_back(LeastMaxLoad(gpus, slots, here));
    }
    return at->second;
  };
  std::function<void(int)> place = [&](int e) {
    if (e == experts) {
      std::vector<int64_t> most(totals.size() / experts);
      for (int n = 0; n < nodes; ++n) {
        const std::vector<int64_t>& loads = loads_of(n);
        for (size_t m = 0; m < most.size(); ++m) most[m] = std::max(most[m], loads[m]);
      }
      int64_t sum = 0;
      for (int64_t load : most) sum += load;
      least = std::min(least, sum);
      return;
    }
    for (int r = 0; r < ranks; ++r) {
      if (used[r] == room) continue;
      ++used[r];
      homes[e] = r;
      place(e + 1);
      --used[r];
    }
  };
  place(0);
  return least;
}

}  // namespace relibra::exhaustive

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_CORE_EXHAUSTIVE_H_

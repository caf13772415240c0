#include "planner_service/core/replicate.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace relibra {
namespace {

// How a receiver is chosen.
enum class Filling { kFewestCopies, kAlias };

// One node while it is filled. Loads of experts are what their homes still serve.
struct Node {
  int first_rank, gpus, slots;
  std::vector<int64_t> load;                                  // [G]
  std::vector<std::vector<std::pair<int32_t, int64_t>>> own;  // [G] (expert, tokens at home)
  std::vector<std::vector<Replica>> held;                     // [G]

  bool Holds(int gpu, int32_t expert) const {
    return std::any_of(held[gpu].begin(), held[gpu].end(),
                       [&](const Replica& r) { return r.expert == expert; });
  }

  // Ships tokens from the most loaded GPU until none is above `target`. False when it cannot.
  bool FillTo(int64_t target, Filling filling) {
    while (true) {
      const int from = std::max_element(load.begin(), load.end()) - load.begin();
      const int64_t surplus = load[from] - target;
      if (surplus <= 0) return true;
      int to = -1;
      for (int h = 0; h < gpus; ++h) {
        if (static_cast<int>(held[h].size()) >= slots || load[h] >= target) continue;
        if (to < 0) {
          to = h;
        } else if (filling == Filling::kFewestCopies) {
          const bool fits = target - load[h] >= surplus, best_fits = target - load[to] >= surplus;
          if (fits != best_fits ? fits : fits ? load[h] > load[to] : load[h] < load[to]) to = h;
        } else if (load[h] < load[to]) {
          to = h;
        }
      }
      if (to < 0) return false;
      const int64_t space = target - load[to];
      const bool last_slot = static_cast<int>(held[to].size()) + 1 == slots;
      const int64_t amount =
          filling == Filling::kAlias && last_slot ? space : std::min(surplus, space);
      if (!Ship(from, to, amount)) return false;
    }
  }

  // Moves up to `amount` tokens of one expert: the smallest that covers it, else the largest.
  bool Ship(int from, int to, int64_t amount) {
    std::pair<int32_t, int64_t>* chosen = nullptr;
    for (auto& expert : own[from]) {
      if (expert.second == 0 || Holds(to, expert.first)) continue;
      const bool better =
          chosen == nullptr ||
          (chosen->second >= amount ? expert.second >= amount && expert.second < chosen->second
                                    : expert.second > chosen->second);
      if (better) chosen = &expert;
    }
    if (chosen == nullptr) return false;
    const int64_t tokens = std::min(amount, chosen->second);
    chosen->second -= tokens;
    load[from] -= tokens;
    load[to] += tokens;
    held[to].push_back({chosen->first, first_rank + to, static_cast<int32_t>(held[to].size()),
                        static_cast<uint32_t>(tokens), false});
    return true;
  }
};

std::optional<Node> Fill(const Node& node, int64_t target) {
  for (Filling filling : {Filling::kFewestCopies, Filling::kAlias}) {
    Node filled = node;
    if (filled.FillTo(target, filling)) return filled;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Replica> PlanReplicas(const Topology& topology, absl::Span<const uint32_t> totals,
                                  absl::Span<const int32_t> home_rank) {
  const int gpus = topology.gpus_per_node;
  std::vector<Node> nodes;
  for (int n = 0; n < topology.nodes; ++n) {
    nodes.push_back({n * gpus, gpus, topology.replica_slots, std::vector<int64_t>(gpus),
                     std::vector<std::vector<std::pair<int32_t, int64_t>>>(gpus),
                     std::vector<std::vector<Replica>>(gpus)});
  }
  for (size_t e = 0; e < totals.size(); ++e) {
    Node& node = nodes[topology.NodeOf(home_rank[e])];
    const int gpu = home_rank[e] - node.first_rank;
    node.load[gpu] += totals[e];
    node.own[gpu].push_back({static_cast<int32_t>(e), totals[e]});
  }
  // The least that each node can reach; the slowest sets the target of all.
  int64_t target = 0;
  for (const Node& node : nodes) {
    int64_t sum = 0, top = 0;
    for (int64_t load : node.load) sum += load, top = std::max(top, load);
    int64_t low = std::max((sum + gpus - 1) / gpus, target), high = std::max(top, low);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (Fill(node, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    target = std::max(target, low);
  }
  std::vector<Replica> replicas;
  for (const Node& node : nodes) {
    std::optional<Node> filled = Fill(node, target);
    if (!filled) continue;
    for (const std::vector<Replica>& held : filled->held) {
      replicas.insert(replicas.end(), held.begin(), held.end());
    }
  }
  std::sort(replicas.begin(), replicas.end(), [](const Replica& a, const Replica& b) {
    return a.expert != b.expert ? a.expert < b.expert : a.rank < b.rank;
  });
  return replicas;
}

}  // namespace relibra

#include "planner_service/core/replicate.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace relibra {

ReplicaPlanner::ReplicaPlanner(const Topology& topology, absl::Span<const int32_t> home_rank,
                               std::vector<Bridge> bridges, const ReplicaOptions& options)
    : topology_(topology),
      home_rank_(home_rank.begin(), home_rank.end()),
      bridges_(std::move(bridges)),
      options_(options),
      experts_(topology.nodes),
      earlier_(topology.nodes),
      earlier_slots_(topology.nodes),
      bridge_tokens_(bridges_.size()),
      given_(home_rank.size()),
      fill_(topology.gpus_per_node) {
  for (size_t e = 0; e < home_rank.size(); ++e) {
    experts_[topology.NodeOf(home_rank[e])].push_back(static_cast<int32_t>(e));
  }
}

void ReplicaPlanner::Load(int node, absl::Span<const uint32_t> totals, int slots) {
  const int first = node * topology_.gpus_per_node;
  fill_.Clear(slots);
  for (int32_t e : experts_[node]) {
    fill_.AddHome(home_rank_[e] - first, e, totals[e] - given_[e]);
  }
  for (size_t b = 0; b < bridges_.size(); ++b) {
    if (topology_.NodeOf(bridges_[b].rank) == node) {
      fill_.AddFixed(bridges_[b].rank - first, bridge_tokens_[b]);
    }
  }
}

bool ReplicaPlanner::FillNode(int node, absl::Span<const uint32_t> totals, int64_t target) {
  // Fewer slots are tried where all of them fail, so that more never end in a worse plan.
  for (int slots = topology_.replica_slots; slots >= 0; --slots) {
    Load(node, totals, slots);
    if (fill_.Fill(target, earlier_[node], options_.search_steps)) return true;
  }
  return false;
}

int64_t ReplicaPlanner::LeastTarget(int node, absl::Span<const uint32_t> totals, int64_t least) {
  Load(node, totals, topology_.replica_slots);
  int64_t low = least, high = std::max(low, fill_.max_load());
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (FillNode(node, totals, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::vector<Replica> ReplicaPlanner::FillNodes(absl::Span<const uint32_t> totals, int64_t target,
                                               int64_t slack) {
  std::vector<Replica> replicas;
  for (int node = 0; node < topology_.nodes; ++node) {
    if (!FillNode(node, totals, target + slack)) {
      // Filling is a heuristic: what fails at one target may succeed at a lower one.
      const int64_t own = LeastTarget(node, totals, fill_.least_target());
      if (own > target) return FillNodes(totals, own, 0);
      FillNode(node, totals, own);
    }
    AddCopies(node, replicas);
  }
  AddBridges(replicas);
  std::sort(replicas.begin(), replicas.end(), [](const Replica& a, const Replica& b) {
    return a.expert != b.expert ? a.expert < b.expert : a.rank < b.rank;
  });
  return replicas;
}

void ReplicaPlanner::AddCopies(int node, std::vector<Replica>& replicas) const {
  const int first = node * topology_.gpus_per_node;
  const size_t begin = replicas.size();
  for (const NodeFill::Copy& copy : fill_.copies()) {
    replicas.push_back({copy.expert, first + copy.to, -1, static_cast<uint32_t>(copy.tokens)});
  }
  const auto placed = absl::MakeSpan(replicas).subspan(begin);
  // A copy that was there keeps its slot; then the others take the lowest that are left.
  for (Replica& replica : placed) {
    for (size_t i = 0; i < earlier_[node].size(); ++i) {
      const NodeFill::Copy& before = earlier_[node][i];
      if (before.expert == replica.expert && first + before.to == replica.rank) {
        replica.slot = earlier_slots_[node][i];
      }
    }
  }
  const auto used = [&](int rank, int slot) {
    return std::any_of(placed.begin(), placed.end(),
                       [&](const Replica& r) { return r.rank == rank && r.slot == slot; }) ||
           std::any_of(bridges_.begin(), bridges_.end(),
                       [&](const Bridge& b) { return b.rank == rank && b.slot == slot; });
  };
  for (Replica& replica : placed) {
    if (replica.slot >= 0) continue;
    int slot = 0;
    while (used(replica.rank, slot)) ++slot;
    replica.slot = slot;
  }
}

void ReplicaPlanner::AddBridges(std::vector<Replica>& replicas) const {
  for (size_t b = 0; b < bridges_.size(); ++b) {
    replicas.push_back({bridges_[b].expert, bridges_[b].rank, bridges_[b].slot,
                        static_cast<uint32_t>(bridge_tokens_[b]), true});
  }
}

void ReplicaPlanner::Remember(const std::vector<Replica>& replicas) {
  kept_ = 0;
  std::vector<std::vector<NodeFill::Copy>> now(topology_.nodes);
  std::vector<std::vector<int32_t>> now_slots(topology_.nodes);
  for (const Replica& r : replicas) {
    if (r.cross_node) continue;
    const int node = topology_.NodeOf(r.rank), first = node * topology_.gpus_per_node;
    for (const NodeFill::Copy& before : earlier_[node]) {
      kept_ += before.expert == r.expert && before.to == r.rank - first;
    }
    now[node].push_back({r.expert, home_rank_[r.expert] - first, r.rank - first, r.tokens});
    now_slots[node].push_back(r.slot);
  }
  earlier_ = std::move(now);
  earlier_slots_ = std::move(now_slots);
}

double ReplicaPlanner::CostOf(absl::Span<const uint32_t> totals,
                              const std::vector<Replica>& replicas) {
  std::vector<int64_t> load(topology_.num_ranks());
  for (size_t e = 0; e < totals.size(); ++e) load[home_rank_[e]] += totals[e];
  int64_t fetched = 0;
  for (const Replica& r : replicas) {
    load[home_rank_[r.expert]] -= r.tokens;
    load[r.rank] += r.tokens;
    if (r.cross_node) continue;
    const int node = topology_.NodeOf(r.rank), first = node * topology_.gpus_per_node;
    fetched += std::none_of(earlier_[node].begin(), earlier_[node].end(),
                            [&](const NodeFill::Copy& before) {
                              return before.expert == r.expert && before.to == r.rank - first;
                            });
  }
  max_load_ = *std::max_element(load.begin(), load.end());
  return static_cast<double>(max_load_) + options_.cost * static_cast<double>(fetched);
}

std::vector<Replica> ReplicaPlanner::Next(absl::Span<const uint32_t> totals) {
  std::fill(given_.begin(), given_.end(), 0);
  LevelNodes(topology_, totals, home_rank_, bridges_, bridge_tokens_);
  for (size_t b = 0; b < bridges_.size(); ++b) given_[bridges_[b].expert] += bridge_tokens_[b];

  int64_t target = 0, heaviest = 0, total = 0;
  for (int node = 0; node < topology_.nodes; ++node) {
    Load(node, totals, topology_.replica_slots);
    target = std::max(target, fill_.least_target());
    heaviest = std::max(heaviest, fill_.max_load());
    total += fill_.total();
  }
  const double mean = static_cast<double>(total) / topology_.num_ranks();
  const auto relaxed = static_cast<int64_t>(mean * (1 + options_.slack));
  std::vector<Replica> best = FillNodes(totals, target, std::max<int64_t>(0, relaxed - target));
  double best_cost = CostOf(totals, best);
  if (options_.cost > 0) {
    // Cheaper plans that leave some imbalance, down to none at all.
    for (int share = 1; share <= 16; share *= 2) {
      std::vector<Replica> other = FillNodes(totals, target + (heaviest - target) * share / 16, 0);
      const double cost = CostOf(totals, other);
      if (cost < best_cost) best = std::move(other), best_cost = cost;
    }
    CostOf(totals, best);
  }
  Remember(best);
  return best;
}

}  // namespace relibra

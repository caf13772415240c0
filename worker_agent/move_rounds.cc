#include "worker_agent/move_rounds.h"

#include <algorithm>
#include <map>
#include <utility>

namespace relibra::agent {
namespace {

using Cycle = std::vector<HomeMove>;

// The moves of one layer (ascending by expert) as cycles. O(moves log moves).
std::vector<Cycle> CyclesOf(const std::vector<HomeMove>& moves) {
  // Moves out of each rank that are not in a cycle yet, the lowest expert last.
  std::map<int, std::vector<HomeMove>> out;
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
    out[move->from_rank].push_back(*move);
  }
  std::vector<Cycle> cycles;
  for (auto& [start, left] : out) {
    while (!left.empty()) {
      // Walk on until a rank comes again; what lies between is a cycle. What enters a rank leaves
      // it too, so the walk never gets stuck before it is back.
      std::vector<HomeMove> path;
      std::map<int, size_t> seen;  // rank -> the path's length on arriving there
      int rank = start;
      while (!path.empty() || !left.empty()) {
        const auto before = seen.find(rank);
        if (before != seen.end()) {
          const auto first = path.begin() + static_cast<ptrdiff_t>(before->second);
          cycles.emplace_back(first, path.end());
          for (auto move = first + 1; move != path.end(); ++move) seen.erase(move->from_rank);
          path.erase(first, path.end());
          if (path.empty()) {
            seen.clear();
            break;
          }
        }
        seen[rank] = path.size();
        path.push_back(out[rank].back());
        out[rank].pop_back();
        rank = path.back().to_rank;
      }
    }
  }
  return cycles;
}

// Counts arrivals in each round and finds the first round that has room.
class Rounds {
 public:
  Rounds(const GroupShape& shape, const RoundLimits& limits) : shape_(shape), limits_(limits) {}

  size_t Place(int layer, const std::vector<int>& arriving_ranks) {
    for (size_t round = 0;; ++round) {
      if (round == per_layer_.size()) {
        per_layer_.emplace_back(static_cast<size_t>(shape_.layers()) * shape_.ranks(), 0);
        in_all_.emplace_back(shape_.ranks(), 0);
      }
      const auto count = [&](int rank) -> int& {
        return per_layer_[round][static_cast<size_t>(layer) * shape_.ranks() + rank];
      };
      const bool fits = std::all_of(arriving_ranks.begin(), arriving_ranks.end(), [&](int rank) {
        return count(rank) < limits_.per_layer && in_all_[round][rank] < limits_.in_all;
      });
      if (!fits) continue;
      for (const int rank : arriving_ranks) {
        ++count(rank);
        ++in_all_[round][rank];
      }
      return round;
    }
  }

  size_t size() const { return per_layer_.size(); }

 private:
  const GroupShape& shape_;
  const RoundLimits limits_;
  std::vector<std::vector<int>> per_layer_;   // [rounds] of [L, P]
  std::vector<std::vector<int64_t>> in_all_;  // [rounds] of [P]
};

}  // namespace

absl::StatusOr<std::vector<MoveRound>> MoveRounds(
    const Placement& now, const std::vector<std::vector<int32_t>>& home_rank,
    const GroupShape& shape, const RoundLimits& limits) {
  const absl::StatusOr<Placement> next = now.WithHomes(home_rank);
  if (!next.ok()) return next.status();
  std::vector<std::vector<HomeMove>> by_layer(shape.layers());
  for (const HomeMove& move : now.MovesTo(*next)) by_layer[move.layer].push_back(move);

  Rounds rounds(shape, limits);
  std::vector<std::vector<HomeMove>> moves_of_round;
  for (int l = 0; l < shape.layers(); ++l) {
    for (const Cycle& cycle : CyclesOf(by_layer[l])) {
      std::vector<int> ranks;
      for (const HomeMove& move : cycle) ranks.push_back(move.to_rank);
      const size_t round = rounds.Place(l, ranks);
      moves_of_round.resize(rounds.size());
      moves_of_round[round].insert(moves_of_round[round].end(), cycle.begin(), cycle.end());
    }
  }

  std::vector<MoveRound> result;
  Placement placement = now;
  for (const std::vector<HomeMove>& moves : moves_of_round) {
    std::vector<std::vector<int32_t>> homes = placement.HomeRanks();
    for (const HomeMove& move : moves) homes[move.layer][move.expert] = move.to_rank;
    const absl::StatusOr<Placement> after = placement.WithHomes(homes);
    if (!after.ok()) return after.status();
    MoveRound round{*after, {}};
    for (const HomeMove& move : placement.MovesTo(*after)) {
      round.transfers.push_back({.from = {move.from_rank, move.layer, move.from_slot},
                                 .expert = move.expert,
                                 .to_rank = move.to_rank,
                                 .to_slot = move.to_slot,
                                 .bridge = false});
    }
    placement = *after;
    result.push_back(std::move(round));
  }
  return result;
}

std::vector<MoveRound> BridgeRounds(const Placement& placement, const Plan& plan,
                                    const GroupShape& shape, const RoundLimits& limits) {
  Rounds rounds(shape, limits);
  std::vector<MoveRound> result;
  for (int l = 0; l < shape.layers(); ++l) {
    if (plan.layers[l].micro_batches.empty()) continue;
    // Bridges are the same in every micro-batch.
    for (const Replica& replica : plan.layers[l].micro_batches[0].replicas) {
      if (!replica.bridge) continue;
      const size_t round = rounds.Place(l, {replica.rank});
      while (result.size() < rounds.size()) result.push_back({placement, {}});
      result[round].transfers.push_back(
          {.from = {placement.RankOf(l, replica.expert), l, placement.SlotOf(l, replica.expert)},
           .expert = replica.expert,
           .to_rank = replica.rank,
           .to_slot = shape.home_slots() + replica.slot,
           .bridge = true});
    }
  }
  return result;
}

}  // namespace relibra::agent

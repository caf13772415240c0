#include "planner_service/core/layer_planner.h"

#include <algorithm>
#include <utility>

#include "planner_service/core/bridge.h"
#include "planner_service/core/rank_placement.h"
#include "planner_service/core/replicate.h"

namespace relibra {
namespace {

constexpr int kMostBridgesByItself = 4;
// Bridges take memory and the slow network: by itself the planner makes them for a gain of this
// share.
constexpr double kBridgeGain = 0.001;

std::vector<Move> MovesBetween(absl::Span<const int32_t> from, const std::vector<int32_t>& to) {
  std::vector<Move> moves;
  for (size_t e = 0; e < to.size(); ++e) {
    if (from[e] != to[e]) moves.push_back({static_cast<int32_t>(e), from[e], to[e]});
  }
  return moves;
}

// Sum over micro-batches of the load of the heaviest rank when ranks inside nodes are flat: no plan
// with these homes and bridges is below it.
int64_t LevelObjective(const Topology& topology, absl::Span<const uint32_t> totals,
                       absl::Span<const int32_t> homes, absl::Span<const Bridge> bridges) {
  std::vector<int64_t> tokens;
  int64_t objective = 0;
  for (size_t begin = 0; begin < totals.size(); begin += homes.size()) {
    objective += LevelNodes(topology, totals.subspan(begin, homes.size()), homes, bridges, tokens);
  }
  return objective;
}

int64_t TotalOf(absl::Span<const uint32_t> totals) {
  int64_t total = 0;
  for (uint32_t tokens : totals) total += tokens;
  return total;
}

LayerOutcome PlanWith(const Topology& topology, absl::Span<const uint32_t> totals,
                      absl::Span<const int32_t> current, const std::vector<int32_t>& home_rank,
                      std::vector<Bridge> bridges, const PlanOptions& options) {
  const bool thorough = options.effort == Effort::kThorough;
  LayerOutcome outcome;
  outcome.bridges = static_cast<int>(bridges.size());
  ReplicaPlanner planner(topology, home_rank, std::move(bridges),
                         {.cost = options.replica_cost,
                          .slack = thorough ? 0.0002 : 0.0005,
                          .search_steps = thorough ? 2000 : 200});
  const size_t experts = home_rank.size();
  int64_t fetched = 0;
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    outcome.plan.replicas.push_back(planner.Next(totals.subspan(begin, experts)));
    outcome.objective += planner.max_load();
    outcome.kept += planner.kept();
    fetched += static_cast<int64_t>(outcome.plan.replicas.back().size()) - outcome.bridges -
               planner.kept();
  }
  outcome.plan.moves = MovesBetween(current, home_rank);
  outcome.plan.home_rank = home_rank;
  outcome.cost = static_cast<double>(outcome.objective) +
                 options.move_cost * static_cast<double>(outcome.plan.moves.size()) +
                 options.move_cost * outcome.bridges +
                 options.replica_cost * static_cast<double>(fetched);
  return outcome;
}

// The number of bridges a node to plan with.
int BridgesANode(const Topology& topology, absl::Span<const uint32_t> totals,
                 const std::vector<int32_t>& homes, const PlanOptions& options,
                 int64_t level_without) {
  const int most = std::min(options.bridges.value_or(kMostBridgesByItself), topology.gpus_per_node);
  const double perfect = static_cast<double>(TotalOf(totals)) / topology.num_ranks();
  const double least_gain = options.bridges ? 0 : kBridgeGain * perfect;
  int best = 0;
  double best_cost = static_cast<double>(level_without);
  for (int k = 1; k <= most; ++k) {
    const std::vector<Bridge> bridges = ChooseBridges(topology, totals, homes, k);
    if (bridges.empty()) break;
    const double cost = static_cast<double>(LevelObjective(topology, totals, homes, bridges)) +
                        options.move_cost * static_cast<double>(bridges.size());
    if (cost + least_gain < best_cost) best = k, best_cost = cost;
    if (best_cost - perfect <= least_gain) break;
  }
  return best;
}

}  // namespace

LayerOutcome PlanReplicasAndBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current,
                                    std::vector<int32_t> home_rank, const PlanOptions& options) {
  const int64_t level_without = LevelObjective(topology, totals, home_rank, {});
  const int k = BridgesANode(topology, totals, home_rank, options, level_without);
  LayerOutcome best;
  if (k > 0) {
    best = PlanWith(topology, totals, current, home_rank,
                    ChooseBridges(topology, totals, home_rank, k), options);
    if (best.cost <= static_cast<double>(level_without)) return best;
  }
  LayerOutcome without = PlanWith(topology, totals, current, home_rank, {}, options);
  return k > 0 && best.cost < without.cost ? best : without;
}

namespace {

// Swaps of single experts judged by the finished plan, from several starts.
LayerOutcome SearchSmall(const Topology& topology, absl::Span<const uint32_t> totals,
                         absl::Span<const int32_t> current, LayerOutcome best,
                         const PlanOptions& options) {
  constexpr int kStarts = 6;
  constexpr int kMostPlans = 3000;
  const int experts = static_cast<int>(current.size());
  int64_t perfect = 0;
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    const int64_t total = TotalOf(totals.subspan(begin, experts));
    perfect += (total + topology.num_ranks() - 1) / topology.num_ranks();
  }
  int plans = 0;
  uint64_t random = options.seed;
  for (int start = 0; start < kStarts && best.objective > perfect; ++start) {
    LayerOutcome here = best;
    if (start > 0) {
      std::vector<int32_t> homes(current.begin(), current.end());
      for (int e = experts - 1; start > 1 && e > 0; --e) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(homes[e], homes[(random >> 33) % (e + 1)]);
      }
      here = PlanReplicasAndBridges(topology, totals, current, std::move(homes), options);
    }
    for (bool better = true; better && plans < kMostPlans;) {
      better = false;
      for (int e = 0; e < experts; ++e) {
        for (int f = e + 1; f < experts; ++f) {
          std::vector<int32_t> homes = here.plan.home_rank;
          if (homes[e] == homes[f] || ++plans > kMostPlans) continue;
          std::swap(homes[e], homes[f]);
          LayerOutcome other =
              PlanReplicasAndBridges(topology, totals, current, std::move(homes), options);
          const auto rank = [](const LayerOutcome& o) {
            return std::pair(o.cost, o.plan.moves.size());
          };
          if (rank(other) < rank(here)) {
            here = std::move(other);
            better = true;
          }
        }
      }
    }
    if (here.cost < best.cost ||
        (here.cost == best.cost && here.plan.moves.size() < best.plan.moves.size())) {
      best = std::move(here);
    }
  }
  return best;
}

}  // namespace

LayerOutcome PlanLayer(const Topology& topology, absl::Span<const uint32_t> totals,
                       absl::Span<const int32_t> current, std::vector<int32_t> home_rank,
                       const PlanOptions& options) {
  constexpr int kFewExperts = 16;
  const bool free_moves = !options.max_moves && options.move_cost == 0;
  const std::vector<int32_t> stay(current.begin(), current.end());
  if (free_moves && topology.replica_slots > 0) BalanceRanks(topology, totals, home_rank);
  const bool moves = home_rank != stay;
  LayerOutcome best =
      PlanReplicasAndBridges(topology, totals, current, std::move(home_rank), options);
  if (moves && best.cost > static_cast<double>(LevelObjective(topology, totals, stay, {}))) {
    LayerOutcome still = PlanReplicasAndBridges(topology, totals, current, stay, options);
    if (still.cost <= best.cost) best = std::move(still);
  }
  if (free_moves && static_cast<int>(current.size()) <= kFewExperts) {
    best = SearchSmall(topology, totals, current, std::move(best), options);
  }
  return best;
}

}  // namespace relibra

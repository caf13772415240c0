#include "planner_service/core/layer_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "planner_service/core/bridge.h"
#include "planner_service/core/rank_placement.h"
#include "planner_service/core/replicate.h"

namespace relibra {
namespace {

constexpr int kMostBridgesByItself = 4;
// Bridges take memory and the slow network: by itself the planner makes them for a gain of this
// share.
constexpr double kBridgeGain = 0.0005;

constexpr double kSlackWithBridges = 0.0004;

// Layers of at most this many loads (M x E) are searched on although only slack is left to gain.
constexpr size_t kSmall = 4096;

// Imbalance below which fewer copies are worth more than balance.
double CopySlack(const PlanOptions& options) {
  return options.effort == Effort::kThorough ? 0.0004 : 0.0009;
}

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

// Load of the heaviest rank over the mean; 1 without tokens.
double ImbalanceOf(int64_t heaviest, int64_t total, const Topology& topology) {
  if (total == 0) return 1;
  return static_cast<double>(heaviest) * topology.num_ranks() / static_cast<double>(total);
}

// Sum over micro-batches of the imbalance of `homes` without replicas.
double ImbalanceWithoutReplicas(const Topology& topology, absl::Span<const uint32_t> totals,
                                absl::Span<const int32_t> homes) {
  std::vector<int64_t> load(topology.num_ranks());
  double sum = 0;
  for (size_t begin = 0; begin < totals.size(); begin += homes.size()) {
    std::fill(load.begin(), load.end(), 0);
    for (size_t e = 0; e < homes.size(); ++e) load[homes[e]] += totals[begin + e];
    sum += ImbalanceOf(*std::max_element(load.begin(), load.end()),
                       std::accumulate(load.begin(), load.end(), int64_t{0}), topology);
  }
  return sum;
}

LayerOutcome PlanWith(const Topology& topology, absl::Span<const uint32_t> totals,
                      absl::Span<const int32_t> current, const std::vector<int32_t>& home_rank,
                      std::vector<Bridge> bridges, const PlanOptions& options) {
  LayerOutcome outcome;
  outcome.bridges = static_cast<int>(bridges.size());
  ReplicaPlanner planner(topology, home_rank, std::move(bridges),
                         {.cost = options.replica_cost,
                          .slack = outcome.bridges > 0 ? kSlackWithBridges : CopySlack(options),
                          .search_steps = options.effort == Effort::kThorough ? 2000 : 200});
  const size_t experts = home_rank.size();
  int64_t fetched = 0;
  double imbalance = 0;
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    outcome.plan.replicas.push_back(planner.Next(totals.subspan(begin, experts)));
    outcome.objective += planner.max_load();
    imbalance += ImbalanceOf(planner.max_load(), TotalOf(totals.subspan(begin, experts)), topology);
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
  // Micro-batches of unlike sizes: what gains tokens in a large one may lose balance in small ones.
  if (imbalance > ImbalanceWithoutReplicas(topology, totals, current)) {
    outcome.cost = std::numeric_limits<double>::infinity();
  }
  return outcome;
}

// Bridges to consider, and what no plan with them is below.
struct BridgeChoice {
  std::vector<Bridge> bridges;
  double least_cost = 0;
  double charge = 0;  // what they must gain by themselves
};

// None, and one to the most a node; those that could be best first, fewest first among equals.
std::vector<BridgeChoice> BridgeChoices(const Topology& topology, absl::Span<const uint32_t> totals,
                                        const std::vector<int32_t>& homes,
                                        const PlanOptions& options) {
  const int most = std::min(options.bridges.value_or(kMostBridgesByItself), topology.gpus_per_node);
  const double perfect = static_cast<double>(TotalOf(totals)) / topology.num_ranks();
  std::vector<BridgeChoice> choices;
  for (int k = 0; k <= most; ++k) {
    std::vector<Bridge> bridges = ChooseBridges(topology, totals, homes, k);
    if (k > 0 && bridges.size() == choices.back().bridges.size()) break;
    BridgeChoice& choice = choices.emplace_back();
    choice.bridges = std::move(bridges);
    if (!options.bridges) choice.charge = kBridgeGain * perfect * k;
    const auto level = static_cast<double>(LevelObjective(topology, totals, homes, choice.bridges));
    choice.least_cost =
        level + choice.charge + options.move_cost * static_cast<double>(choice.bridges.size());
    if (level <= perfect * (1 + kSlackWithBridges)) break;  // nothing is left to gain
  }
  std::stable_sort(
      choices.begin(), choices.end(),
      [](const BridgeChoice& x, const BridgeChoice& y) { return x.least_cost < y.least_cost; });
  return choices;
}

}  // namespace

LayerOutcome PlanReplicasAndBridges(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current,
                                    const std::vector<int32_t>& home_rank,
                                    const PlanOptions& options) {
  LayerOutcome best;
  const double spent_slack =
      std::floor(kSlackWithBridges * static_cast<double>(TotalOf(totals)) / topology.num_ranks());
  for (BridgeChoice& choice : BridgeChoices(topology, totals, home_rank, options)) {
    // Every choice that follows is worse than what is already planned, but for the slack that was
    // spent to save copies, so the best of all is found: more bridges allowed never make the plan
    // worse.
    if (!best.plan.home_rank.empty() && choice.least_cost >= best.cost - spent_slack) break;
    LayerOutcome outcome =
        PlanWith(topology, totals, current, home_rank, std::move(choice.bridges), options);
    outcome.cost += choice.charge;
    const bool fewer = outcome.cost == best.cost && outcome.bridges < best.bridges;
    const bool first = best.plan.home_rank.empty();
    if (first || outcome.cost < best.cost || fewer) best = std::move(outcome);
  }
  return best;
}

namespace {

// What no plan with these homes, of which `moves` experts move, is below.
double LeastCost(const Topology& topology, absl::Span<const uint32_t> totals,
                 const std::vector<int32_t>& homes, int64_t moves, const PlanOptions& options) {
  return BridgeChoices(topology, totals, homes, options).front().least_cost +
         options.move_cost * static_cast<double>(moves);
}

// Swaps of single experts judged by the finished plan, from several starts. Plans are dear, so
// their number is bounded by the size of the layer: a handful of micro-batches is searched well, a
// whole batch hardly at all.
LayerOutcome SearchSmall(const Topology& topology, absl::Span<const uint32_t> totals,
                         absl::Span<const int32_t> current, LayerOutcome best,
                         const PlanOptions& options) {
  constexpr int kStarts = 6;
  constexpr int kMostLoadsPlanned = 20000;
  const int most_plans = kMostLoadsPlanned / static_cast<int>(totals.size());
  const int experts = static_cast<int>(current.size());
  int64_t perfect = 0;
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    const int64_t total = TotalOf(totals.subspan(begin, experts));
    perfect += (total + topology.num_ranks() - 1) / topology.num_ranks();
  }
  // What is within the slack has nothing to gain.
  perfect += static_cast<int64_t>(CopySlack(options) * static_cast<double>(perfect));
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
      here = PlanReplicasAndBridges(topology, totals, current, homes, options);
    }
    for (bool better = true; better && plans < most_plans;) {
      better = false;
      for (int e = 0; e < experts; ++e) {
        for (int f = e + 1; f < experts; ++f) {
          std::vector<int32_t> homes = here.plan.home_rank;
          if (homes[e] == homes[f]) continue;
          std::swap(homes[e], homes[f]);
          if (LeastCost(topology, totals, homes, 0, options) > here.cost) continue;
          if (++plans > most_plans) continue;
          LayerOutcome other = PlanReplicasAndBridges(topology, totals, current, homes, options);
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

int64_t ReplicasOf(const LayerOutcome& outcome) {
  int64_t replicas = 0;
  for (const std::vector<Replica>& micro_batch : outcome.plan.replicas) {
    replicas += static_cast<int64_t>(micro_batch.size());
  }
  return replicas;
}

// Whether to leave homes alone. Between outcomes that balance alike, moves must save replicas.
bool StaysBetter(const LayerOutcome& still, const LayerOutcome& moved, const PlanOptions& options) {
  constexpr double kFewer = 0.95;
  const double alike = std::floor(CopySlack(options) * still.cost);
  if (still.cost > moved.cost + alike) return false;
  if (still.cost < moved.cost - alike) return true;
  return static_cast<double>(ReplicasOf(moved)) >= kFewer * static_cast<double>(ReplicasOf(still));
}

}  // namespace

LayerOutcome PlanLayer(const Topology& topology, absl::Span<const uint32_t> totals,
                       absl::Span<const int32_t> current, absl::Span<const HomeChoice> choices,
                       const PlanOptions& options) {
  constexpr int kFewExperts = 16, kExpertsToTryAllChoices = 64;
  const bool free_moves = !options.max_moves && options.move_cost == 0;
  std::vector<int32_t> homes = choices.back().home_rank;
  if (free_moves && topology.replica_slots > 0) BalanceRanks(topology, totals, homes);
  LayerOutcome best = PlanReplicasAndBridges(topology, totals, current, homes, options);
  // What was spent to save copies is no reason to look on.
  const double slack = totals.size() > kSmall ? CopySlack(options) * best.cost : 0;
  // Fewer moves may end better: what replicas and bridges make of homes is known only now. Among
  // many experts none decides alone, so that only the first and the last choice are planned.
  const bool few = static_cast<int>(current.size()) <= kExpertsToTryAllChoices;
  const int last = static_cast<int>(choices.size()) - 1;
  for (int i = last; i >= 0; i = few || i == 0 ? i - 1 : 0) {
    const std::vector<int32_t>& other = choices[i].home_rank;
    if (other == best.plan.home_rank) continue;
    const double least = LeastCost(topology, totals, other, choices[i].moves, options);
    if (least > best.cost || (i > 0 && free_moves && least > best.cost - slack)) continue;
    LayerOutcome outcome = PlanReplicasAndBridges(topology, totals, current, other, options);
    const bool judge_by_moves = i == 0 || outcome.cost == best.cost;
    if (judge_by_moves ? StaysBetter(outcome, best, options) : outcome.cost < best.cost) {
      best = std::move(outcome);
    }
  }
  if (free_moves && static_cast<int>(current.size()) <= kFewExperts) {
    best = SearchSmall(topology, totals, current, std::move(best), options);
    LayerOutcome still = PlanReplicasAndBridges(topology, totals, current,
                                                {current.begin(), current.end()}, options);
    if (StaysBetter(still, best, options)) best = std::move(still);
  }
  return best;
}

}  // namespace relibra

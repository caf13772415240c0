#include "planner_service/core/reorder.h"

#include <algorithm>
#include <utility>

#include "planner_service/core/anneal.h"
#include "planner_service/core/gram_swaps.h"
#include "planner_service/core/node_loads.h"
#include "planner_service/core/rank_placement.h"

namespace relibra {
namespace {

constexpr int kFastPasses = 4;
// A thorough search takes at most some 20 times as long as a fast one. A try costs O(nodes x
// micro-batches).
constexpr int64_t kMostTriesAnExpert = 6000;
constexpr int64_t kTriesTimesLoadsAnExpert = 1500000;

// What the search works on: nodes where replicas flatten the ranks inside, else single ranks.
struct Grouping {
  const Topology& topology;
  bool by_rank;

  int count() const { return by_rank ? topology.num_ranks() : topology.nodes; }
  std::vector<int32_t> GroupsOf(absl::Span<const int32_t> homes) const {
    std::vector<int32_t> groups(homes.begin(), homes.end());
    if (!by_rank) {
      for (int32_t& group : groups) group = topology.NodeOf(group);
    }
    return groups;
  }
  std::vector<int32_t> HomesOf(const ExpertLoads& loads, const std::vector<int32_t>& groups,
                               absl::Span<const int32_t> current) const {
    return by_rank ? groups : PlaceOnRanks(topology, loads, groups, current);
  }
};

// The objective in whole tokens, not in the search's scaled ones.
int64_t ExactObjective(absl::Span<const uint32_t> totals, const std::vector<int32_t>& groups,
                       int count) {
  std::vector<int64_t> load(count);
  int64_t objective = 0;
  for (size_t begin = 0; begin < totals.size(); begin += groups.size()) {
    std::fill(load.begin(), load.end(), 0);
    for (size_t e = 0; e < groups.size(); ++e) load[groups[e]] += totals[begin + e];
    objective += *std::max_element(load.begin(), load.end());
  }
  return objective;
}

// The best groups that a search with free moves finds.
std::vector<int32_t> SearchFreely(const ExpertLoads& loads, int count,
                                  const std::vector<int32_t>& before, Effort effort,
                                  uint64_t seed) {
  NodeLoads fresh(loads, count, GramSwaps(loads, count, std::nullopt));
  fresh.Descend(kFastPasses);
  std::vector<int32_t> best = fresh.nodes();
  const int64_t best_objective = fresh.Objective();
  NodeLoads near(loads, count, before);
  // From homes that are far off, descent is slow and ends no better than the fresh start.
  constexpr double kFarOff = 1.15;
  if (static_cast<double>(near.Objective()) < kFarOff * static_cast<double>(best_objective)) {
    near.Descend(kFastPasses);
    if (near.Objective() <= best_objective) best = near.nodes();
  }
  if (effort == Effort::kThorough) {
    const int64_t tries =
        std::min(kMostTriesAnExpert,
                 kTriesTimesLoadsAnExpert / (int64_t{1} * count * loads.micro_batches()));
    best = Anneal(loads, count, best, tries * loads.experts(), seed);
  }
  KeepNames(count, before, best);
  NodeLoads kept(loads, count, best);
  ReturnNeedlessMoves(before, kept);
  return kept.nodes();
}

int64_t CountMoves(absl::Span<const int32_t> before, const std::vector<int32_t>& after) {
  int64_t moves = 0;
  for (size_t e = 0; e < after.size(); ++e) moves += before[e] != after[e];
  return moves;
}

// The swap of an expert of `group` that lowers the objective most, or {-1, -1}.
std::pair<int, int> SteepestSwap(const NodeLoads& state, int group) {
  std::pair<int, int> best = {-1, -1};
  int64_t least = state.Objective();
  const int experts = static_cast<int>(state.nodes().size());
  for (int e : state.members()[group]) {
    for (int f = 0; f < experts; ++f) {
      if (state.NodeOf(f) == group) continue;
      const int64_t after = state.ObjectiveAfterSwap(e, f);
      if (after < least) least = after, best = {e, f};
    }
  }
  return best;
}

// Steepest swaps from the current homes, one choice a swap: each relieves the group that stands out
// most. Ends before the objective falls below `least`. O(E^2 / groups) swaps are judged for one
// that is made.
void AddSteepestSwaps(const Grouping& grouping, const ExpertLoads& loads,
                      absl::Span<const uint32_t> totals, absl::Span<const int32_t> current,
                      int64_t least, std::vector<HomeChoice>& choices) {
  NodeLoads state(loads, grouping.count(), grouping.GroupsOf(current));
  for (bool better = true; better;) {
    better = false;
    for (int group : state.HeaviestGroups()) {
      const auto [e, f] = SteepestSwap(state, group);
      if (e < 0) continue;
      state.Swap(e, f);
      HomeChoice choice;
      choice.home_rank = grouping.HomesOf(loads, state.nodes(), current);
      choice.moves = CountMoves(current, choice.home_rank);
      choice.objective = ExactObjective(totals, state.nodes(), grouping.count());
      if (choice.objective < least) return;
      choices.push_back(std::move(choice));
      better = true;
      break;
    }
  }
}

// Ascending in moves, strictly descending in objective.
void KeepUsefulChoices(std::vector<HomeChoice>& choices) {
  std::stable_sort(choices.begin(), choices.end(), [](const HomeChoice& a, const HomeChoice& b) {
    return a.moves != b.moves ? a.moves < b.moves : a.objective < b.objective;
  });
  size_t kept = 1;
  for (size_t i = 1; i < choices.size(); ++i) {
    if (choices[i].objective < choices[kept - 1].objective) {
      if (kept != i) choices[kept] = std::move(choices[i]);
      ++kept;
    }
  }
  choices.resize(kept);
}

}  // namespace

std::vector<HomeChoice> HomeChoices(const Topology& topology, absl::Span<const uint32_t> totals,
                                    absl::Span<const int32_t> current, Effort effort,
                                    bool every_budget, uint64_t seed) {
  const Grouping grouping{topology, topology.replica_slots == 0};
  const std::vector<int32_t> before = grouping.GroupsOf(current);
  std::vector<HomeChoice> choices(1);
  choices[0].home_rank.assign(current.begin(), current.end());
  choices[0].objective = ExactObjective(totals, before, grouping.count());
  const int experts = static_cast<int>(current.size());
  if (grouping.count() == 1 || experts == 1) return choices;

  const ExpertLoads loads(totals, experts);
  const std::vector<int32_t> groups = SearchFreely(loads, grouping.count(), before, effort, seed);
  HomeChoice best;
  best.objective = ExactObjective(totals, groups, grouping.count());
  best.home_rank = grouping.HomesOf(loads, groups, current);
  best.moves = CountMoves(current, best.home_rank);
  choices.push_back(std::move(best));
  if (every_budget) {
    // A limit must not gain more than no limit does. Where these swaps cost little, both see them;
    // else they end where the free search did.
    const int64_t least = experts <= kFewExperts ? 0 : choices.back().objective;
    AddSteepestSwaps(grouping, loads, totals, current, least, choices);
  }
  KeepUsefulChoices(choices);
  return choices;
}

}  // namespace relibra

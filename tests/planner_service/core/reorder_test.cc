#include "planner_service/core/reorder.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

using Homes = std::vector<int32_t>;
using Totals = std::vector<uint32_t>;

int64_t ObjectiveOf(const Topology& topology, const Totals& totals, const Homes& homes) {
  const bool by_rank = topology.replica_slots == 0;
  int64_t sum = 0;
  for (size_t begin = 0; begin < totals.size(); begin += homes.size()) {
    std::vector<int64_t> load(topology.num_ranks());
    for (size_t e = 0; e < homes.size(); ++e) {
      load[by_rank ? homes[e] : topology.NodeOf(homes[e])] += totals[begin + e];
    }
    sum += *std::max_element(load.begin(), load.end());
  }
  return sum;
}

TEST(ReorderTest, TwoHotExpertsOfANodeArePartedWithOneExchange) {
  // Node 0 has 9 + 8, node 1 has 1 + 2; one exchange gives 10 and 10.
  const Totals totals = {9, 8, 1, 2};
  const Homes current = {0, 1, 2, 3};
  for (bool every_budget : {false, true}) {
    const std::vector<HomeChoice> choices =
        HomeChoices({2, 2, 1}, totals, current, Effort::kFast, every_budget, 0);
    ASSERT_THAT(choices, SizeIs(2));
    EXPECT_EQ(choices[0].home_rank, current);
    EXPECT_EQ(choices[0].objective, 17);
    EXPECT_EQ(choices[1].objective, 10);
    EXPECT_EQ(choices[1].moves, 2);
  }
}

TEST(ReorderTest, WithoutSlotsRanksAreLevelled) {
  // Rank 0 has 5 + 5, rank 1 has 1 + 1, in one node.
  const std::vector<HomeChoice> choices =
      HomeChoices({1, 2, 0}, Totals{5, 5, 1, 1}, Homes{0, 0, 1, 1}, Effort::kFast, false, 0);
  ASSERT_THAT(choices, SizeIs(2));
  EXPECT_EQ(choices[1].objective, 6);
}

TEST(ReorderTest, ThereIsNothingToChooseInOneNodeOrWithLevelLoads) {
  EXPECT_THAT(HomeChoices({1, 2, 1}, Totals{5, 1}, Homes{0, 1}, Effort::kFast, true, 0), SizeIs(1));
  EXPECT_THAT(HomeChoices({1, 1, 0}, Totals{5}, Homes{0}, Effort::kFast, true, 0), SizeIs(1));
  EXPECT_THAT(
      HomeChoices({2, 1, 1}, Totals{4, 4, 4, 4}, Homes{1, 0, 1, 0}, Effort::kThorough, true, 0),
      SizeIs(1));
  EXPECT_THAT(
      HomeChoices({2, 1, 1}, Totals{0, 0, 0, 0}, Homes{1, 0, 1, 0}, Effort::kThorough, true, 0),
      SizeIs(1));
}

TEST(ReorderTest, ChoicesAscendInMovesDescendInObjectiveAndSayWhatTheyAre) {
  Draw draw(31);
  for (int i = 0; i < 500; ++i) {
    const Topology topology{draw.Between(1, 4), draw.Between(1, 3), draw.Between(0, 1)};
    const int ranks = topology.num_ranks(), experts = ranks * draw.Between(1, 4);
    Totals totals;
    const int most = draw.OneIn(2) ? 4 : 5000;
    for (int j = draw.Between(1, 5) * experts; j > 0; --j) totals.push_back(draw.Between(0, most));
    Homes current;
    for (int e = 0; e < experts; ++e) current.push_back(e % ranks);
    const auto effort = draw.OneIn(10) ? Effort::kThorough : Effort::kFast;
    const bool every_budget = draw.OneIn(2);
    const std::vector<HomeChoice> choices =
        HomeChoices(topology, totals, current, effort, every_budget, i);
    ASSERT_EQ(choices[0].home_rank, current);
    ASSERT_TRUE(every_budget || choices.size() <= 2);
    for (size_t c = 0; c < choices.size(); ++c) {
      int64_t moves = 0;
      std::vector<int> sizes(ranks);
      for (int e = 0; e < experts; ++e) {
        moves += choices[c].home_rank[e] != current[e];
        ++sizes[choices[c].home_rank[e]];
      }
      ASSERT_EQ(choices[c].moves, moves);
      ASSERT_THAT(sizes, Each(experts / ranks));
      ASSERT_EQ(choices[c].objective, ObjectiveOf(topology, totals, choices[c].home_rank));
      if (c == 0) continue;
      ASSERT_GE(choices[c].moves, choices[c - 1].moves);
      ASSERT_LT(choices[c].objective, choices[c - 1].objective);
    }
  }
}

// The least objective over every partition of the experts into nodes of equal size.
int64_t Optimum(int nodes, const Totals& totals, int experts) {
  Homes node(experts);
  std::vector<int> room(nodes, experts / nodes);
  int64_t least = std::numeric_limits<int64_t>::max();
  std::function<void(int)> place = [&](int e) {
    if (e == experts) {
      least = std::min(least, ObjectiveOf({nodes, 1, 1}, totals, node));
      return;
    }
    for (int n = 0; n < nodes; ++n) {
      if (room[n] == 0) continue;
      --room[n];
      node[e] = n;
      place(e + 1);
      ++room[n];
    }
  };
  place(0);
  return least;
}

TEST(ReorderTest, IsOptimalInMostTinyCasesAndNeverFarOff) {
  Draw draw(41);
  constexpr int kCases = 300;
  int fast_optimal = 0, thorough_optimal = 0;
  double worst = 1;
  for (int i = 0; i < kCases; ++i) {
    const int nodes = draw.Between(2, 3), experts = nodes * draw.Between(2, nodes == 2 ? 4 : 3);
    Totals totals;
    for (int j = draw.Between(1, 4) * experts; j > 0; --j) totals.push_back(draw.Between(0, 1000));
    Homes current;
    for (int e = 0; e < experts; ++e) current.push_back(e / (experts / nodes));
    const int64_t least = Optimum(nodes, totals, experts);
    const auto found = [&](Effort effort) {
      return HomeChoices({nodes, 1, 1}, totals, current, effort, true, 1).back().objective;
    };
    const int64_t fast = found(Effort::kFast);
    ASSERT_GE(fast, least);
    fast_optimal += fast == least;
    worst = std::max(worst, static_cast<double>(fast) / static_cast<double>(least));
    if (i % 4 == 0) thorough_optimal += found(Effort::kThorough) == least;
  }
  RecordProperty("fast_optimal", fast_optimal);
  RecordProperty("thorough_optimal_of_a_quarter", thorough_optimal);
  RecordProperty("worst_in_thousandths", static_cast<int>(1000 * worst));
  EXPECT_GE(fast_optimal, kCases * 90 / 100);
  EXPECT_GE(thorough_optimal, kCases / 4 * 95 / 100);
  EXPECT_LE(worst, 1.1);
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/rank_placement.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Homes = std::vector<int32_t>;
using Totals = std::vector<uint32_t>;

std::vector<int> Sizes(const Homes& homes, int groups) {
  std::vector<int> sizes(groups);
  for (int32_t home : homes) ++sizes[home];
  return sizes;
}

TEST(KeepNamesTest, GroupsTakeTheNameOfTheirLargestOverlap) {
  // Group 0 has most of what was 1, group 1 of what was 0; group 2 keeps what is left.
  Homes node = {1, 1, 2, 0, 0, 0, 2, 1, 2};
  KeepNames(3, Homes{0, 0, 0, 1, 1, 1, 2, 2, 2}, node);
  EXPECT_THAT(node, ElementsAre(0, 0, 2, 1, 1, 1, 2, 0, 2));
}

TEST(KeepNamesTest, RenamedGroupsAreKnownAgain) {
  Draw draw(2);
  for (int i = 0; i < 200; ++i) {
    const int groups = draw.Between(1, 6);
    Homes before, names;
    for (int e = 0; e < groups * 3; ++e) before.push_back(e % groups);
    for (int g = 0; g < groups; ++g) names.push_back(g);
    draw.Shuffle(before);
    draw.Shuffle(names);
    Homes node = before;
    for (int32_t& n : node) n = names[n];
    KeepNames(groups, before, node);
    EXPECT_EQ(node, before);
  }
}

TEST(ReturnNeedlessMovesTest, ExpertsOfEqualLoadGoHome) {
  // 0 and 2 changed places although they weigh the same; 1 and 3 changed places and had to.
  const Totals totals = {5, 9, 5, 1, 0, 1, 0, 9};
  const Homes before = {0, 0, 1, 1};
  const ExpertLoads loads(totals, 4);
  NodeLoads state(loads, 2, Homes{1, 0, 0, 1});
  ReturnNeedlessMoves(before, state);
  EXPECT_EQ(state.nodes(), before);
}

TEST(ReturnNeedlessMovesTest, NeverCostsAnythingAndNeverAddsMoves) {
  Draw draw(3);
  for (int i = 0; i < 300; ++i) {
    const int groups = draw.Between(2, 4), experts = groups * draw.Between(1, 4);
    Totals totals;
    for (int j = 0; j < experts * 3; ++j) totals.push_back(draw.Between(0, 3));
    Homes before, node;
    for (int e = 0; e < experts; ++e) before.push_back(e % groups);
    node = before;
    draw.Shuffle(node);
    const ExpertLoads loads(totals, experts);
    NodeLoads state(loads, groups, node);
    const int64_t objective = state.Objective();
    ReturnNeedlessMoves(before, state);
    EXPECT_LE(state.Objective(), objective);
    const auto moves = [&](const Homes& after) {
      int count = 0;
      for (int e = 0; e < experts; ++e) count += before[e] != after[e];
      return count;
    };
    EXPECT_LE(moves(state.nodes()), moves(node));
    EXPECT_EQ(Sizes(state.nodes(), groups), Sizes(before, groups));
  }
}

TEST(PlaceOnRanksTest, StayersKeepTheirRankAndNewcomersGoWhereTheyHaveLeastInCommon) {
  // 2 x 2 ranks, experts 0..7 two a rank. Experts 1 (rank 0) and 3 (rank 1) change places with 5
  // (rank 2) and 7 (rank 3). Expert 0 on rank 0 is hot in micro-batch 0, expert 2 on rank 1 in
  // micro-batch 1; newcomer 5 is hot in micro-batch 0 and so joins 2, and 7 takes what is left.
  const Totals totals = {9, 1, 1, 1, 4, 8, 4, 1,  //
                         1, 1, 9, 1, 4, 1, 4, 6};
  const ExpertLoads loads(totals, 8);
  const Homes current = {0, 0, 1, 1, 2, 2, 3, 3};
  const Homes homes = PlaceOnRanks({2, 2, 1}, loads, Homes{0, 1, 0, 1, 1, 0, 1, 0}, current);
  EXPECT_EQ(homes[0], 0);
  EXPECT_EQ(homes[2], 1);
  EXPECT_EQ(homes[4], 2);
  EXPECT_EQ(homes[6], 3);
  EXPECT_EQ(homes[5], 1);
  EXPECT_EQ(homes[7], 0);
  EXPECT_THAT(Sizes(homes, 4), Each(2));
}

TEST(PlaceOnRanksTest, EveryRankHasItsShareAndEveryExpertItsNode) {
  Draw draw(4);
  for (int i = 0; i < 300; ++i) {
    const Topology topology{draw.Between(1, 4), draw.Between(1, 4), 1};
    const int ranks = topology.num_ranks(), experts = ranks * draw.Between(1, 3);
    Totals totals;
    for (int j = 0; j < experts * 4; ++j) totals.push_back(draw.Between(0, 9));
    Homes current, node;
    for (int e = 0; e < experts; ++e) current.push_back(e % ranks);
    for (int e = 0; e < experts; ++e) node.push_back(e % topology.nodes);
    draw.Shuffle(current);
    draw.Shuffle(node);
    const Homes homes = PlaceOnRanks(topology, ExpertLoads(totals, experts), node, current);
    EXPECT_THAT(Sizes(homes, ranks), Each(experts / ranks));
    for (int e = 0; e < experts; ++e) {
      EXPECT_EQ(topology.NodeOf(homes[e]), node[e]);
      if (topology.NodeOf(current[e]) == node[e]) {
        EXPECT_EQ(homes[e], current[e]);
      }
    }
  }
}

TEST(BalanceRanksTest, MovesExpertsOfAHotRankToACoolOneOfTheSameNode) {
  // Rank 0 has 10 + 10, rank 1 has 1 + 1; node 1 is level and stays.
  Homes homes = {0, 0, 1, 1, 2, 2, 3, 3};
  BalanceRanks({2, 2, 1}, Totals{10, 10, 1, 1, 5, 5, 5, 5}, homes);
  EXPECT_NE(homes[0], homes[1]);
  EXPECT_NE(homes[2], homes[3]);
  EXPECT_THAT(Homes(homes.begin() + 4, homes.end()), ElementsAre(2, 2, 3, 3));
}

TEST(BalanceRanksTest, LeavesHomesForLittle) {
  // 103 against 97: levelling takes the heaviest rank down by 2.9 %, less than 5 %.
  Homes homes = {0, 0, 1, 1};
  BalanceRanks({1, 2, 1}, Totals{52, 51, 48, 49}, homes);
  EXPECT_THAT(homes, ElementsAre(0, 0, 1, 1));
}

TEST(BalanceRanksTest, ChangesNoNodeAndNoSize) {
  Draw draw(5);
  for (int i = 0; i < 300; ++i) {
    const Topology topology{draw.Between(1, 3), draw.Between(1, 4), 1};
    const int ranks = topology.num_ranks(), experts = ranks * draw.Between(1, 4);
    Totals totals;
    for (int j = 0; j < experts * 3; ++j) totals.push_back(draw.Between(0, 50));
    Homes homes;
    for (int e = 0; e < experts; ++e) homes.push_back(e % ranks);
    draw.Shuffle(homes);
    const Homes before = homes;
    BalanceRanks(topology, totals, homes);
    EXPECT_THAT(Sizes(homes, ranks), Each(experts / ranks));
    for (int e = 0; e < experts; ++e) {
      EXPECT_EQ(topology.NodeOf(homes[e]), topology.NodeOf(before[e]));
    }
  }
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/node_loads.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;

using Totals = std::vector<uint32_t>;
using Groups = std::vector<int32_t>;

struct Case {
  int groups = 0;
  int experts = 0;
  Totals totals;  // [M, E]
  Groups node;
};

Case DrawCase(Draw& draw, int most_load) {
  Case c;
  c.groups = draw.Between(2, 5);
  c.experts = c.groups * draw.Between(1, 5);
  const int micro_batches = draw.Between(1, 40);
  for (int i = 0; i < micro_batches * c.experts; ++i) {
    c.totals.push_back(draw.OneIn(5) ? 0 : draw.Between(0, most_load));
  }
  for (int e = 0; e < c.experts; ++e) c.node.push_back(e % c.groups);
  draw.Shuffle(c.node);
  return c;
}

int64_t ObjectiveOf(const Case& c, const Groups& node) {
  int64_t sum = 0;
  for (size_t begin = 0; begin < c.totals.size(); begin += c.experts) {
    std::vector<int64_t> load(c.groups);
    for (int e = 0; e < c.experts; ++e) load[node[e]] += c.totals[begin + e];
    sum += *std::max_element(load.begin(), load.end());
  }
  return sum;
}

TEST(ExpertLoadsTest, IsExpertMajorAndPaddedWithZeros) {
  const ExpertLoads loads(Totals{1, 2, 3, 4, 5, 6}, 3);
  EXPECT_EQ(loads.experts(), 3);
  EXPECT_EQ(loads.micro_batches(), 2);
  EXPECT_EQ(loads.stride() % 16, 0);
  EXPECT_EQ(loads.Row(1)[0], 2);
  EXPECT_EQ(loads.Row(1)[1], 5);
  for (int m = 2; m < loads.stride(); ++m) EXPECT_EQ(loads.Row(1)[m], 0);
}

TEST(ExpertLoadsTest, LargeLoadsAreHalvedUntilTheirSumsFit) {
  // 16 experts of 2^32 - 1 in 32 micro-batches: the objective of one group would be 2^41.
  const ExpertLoads loads(Totals(32 * 16, 0xffffffffu), 16);
  const NodeLoads state(loads, 2, Groups{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_GT(loads.Row(0)[0], 1000);
  EXPECT_EQ(state.Objective(), int64_t{32} * 8 * loads.Row(0)[0]);
  EXPECT_LT(state.Objective(), int64_t{1} << 31);
}

TEST(NodeLoadsTest, ObjectiveIsTheSumOfTheHeaviestGroups) {
  // Groups {0, 2} and {1}: 4 and 2, then 4 and 9.
  const ExpertLoads loads(Totals{1, 2, 3, 4, 9, 0}, 3);
  EXPECT_EQ(NodeLoads(loads, 2, Groups{0, 1, 0}).Objective(), 4 + 9);
}

TEST(NodeLoadsTest, HeaviestGroupsStandFirstByHowFarTheyStandOut) {
  // Group loads by micro-batch: (5, 9, 1), (8, 2, 7), (0, 6, 5): group 1 stands out by 4 + 1, group
  // 0 by 1, group 2 is never heaviest.
  const ExpertLoads loads(Totals{5, 9, 1, 8, 2, 7, 0, 6, 5}, 3);
  EXPECT_THAT(NodeLoads(loads, 3, Groups{0, 1, 2}).HeaviestGroups(), ElementsAre(1, 0));
}

TEST(NodeLoadsTest, SwapsKeepTheStateThatARecountGives) {
  Draw draw(5);
  for (int i = 0; i < 200; ++i) {
    const Case c = DrawCase(draw, 1000);
    const ExpertLoads loads(c.totals, c.experts);
    NodeLoads state(loads, c.groups, c.node);
    Groups node = c.node;
    for (int swap = 0; swap < 20; ++swap) {
      const int e = draw.Between(0, c.experts - 1), f = draw.Between(0, c.experts - 1);
      if (node[e] == node[f]) continue;
      std::swap(node[e], node[f]);
      const int64_t after = ObjectiveOf(c, node);
      ASSERT_EQ(state.ObjectiveAfterSwap(e, f), after);
      if (draw.OneIn(2)) {
        std::swap(node[e], node[f]);
        continue;
      }
      state.Swap(e, f);
      ASSERT_EQ(state.Objective(), after);
      ASSERT_EQ(state.nodes(), node);
      for (int g = 0; g < c.groups; ++g) {
        for (int member : state.members()[g]) ASSERT_EQ(node[member], g);
      }
    }
  }
}

TEST(NodeLoadsTest, OnlySwapsThatTouchAHeaviestGroupLowerTheObjective) {
  Draw draw(6);
  for (int i = 0; i < 200; ++i) {
    const Case c = DrawCase(draw, 20);
    const ExpertLoads loads(c.totals, c.experts);
    const NodeLoads state(loads, c.groups, c.node);
    const std::vector<int> heaviest = state.HeaviestGroups();
    const auto heavy = [&](int e) {
      return std::find(heaviest.begin(), heaviest.end(), c.node[e]) != heaviest.end();
    };
    for (int e = 0; e < c.experts; ++e) {
      for (int f = 0; f < e; ++f) {
        if (c.node[e] == c.node[f] || heavy(e) || heavy(f)) continue;
        ASSERT_GE(state.ObjectiveAfterSwap(e, f), state.Objective());
      }
    }
  }
}

TEST(NodeLoadsTest, EveryPassOfDescentIsNoWorseAndTheLastLeavesNoBetterSwap) {
  Draw draw(8);
  for (int i = 0; i < 200; ++i) {
    const Case c = DrawCase(draw, i % 2 == 0 ? 5 : 100000);
    const ExpertLoads loads(c.totals, c.experts);
    NodeLoads state(loads, c.groups, c.node);
    int64_t last = state.Objective();
    for (int pass = 0; pass < 200; ++pass) {
      state.Descend(1);
      ASSERT_LE(state.Objective(), last);
      if (state.Objective() == last) break;
      last = state.Objective();
    }
    ASSERT_EQ(state.Objective(), ObjectiveOf(c, state.nodes()));
    for (int g = 0; g < c.groups; ++g) {
      ASSERT_EQ(state.members()[g].size(), c.experts / c.groups * 1u);
    }
    for (int e = 0; e < c.experts; ++e) {
      for (int f = 0; f < e; ++f) {
        if (state.NodeOf(e) == state.NodeOf(f)) continue;
        ASSERT_GE(state.ObjectiveAfterSwap(e, f), state.Objective());
      }
    }
  }
}

}  // namespace
}  // namespace relibra

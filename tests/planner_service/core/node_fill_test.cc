#include "planner_service/core/node_fill.h"

#include <algorithm>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/exhaustive.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kSearchSteps = 200;

// Item i is expert i.
NodeFill Filled(int gpus, int slots, const std::vector<exhaustive::NodeExpert>& experts) {
  NodeFill fill(gpus);
  fill.Clear(slots);
  for (size_t i = 0; i < experts.size(); ++i) {
    fill.AddHome(experts[i].home, static_cast<int32_t>(i), experts[i].tokens);
  }
  return fill;
}

TEST(NodeFillTest, OneCopyLevelsTwoRanks) {
  NodeFill fill = Filled(2, 1, {{0, 10}, {1, 4}});
  EXPECT_EQ(fill.total(), 14);
  EXPECT_EQ(fill.max_load(), 10);
  EXPECT_EQ(fill.least_target(), 7);
  ASSERT_TRUE(fill.Fill(7, {}, kSearchSteps));
  ASSERT_THAT(fill.copies(), SizeIs(1));
  EXPECT_EQ(fill.copies()[0].expert, 0);
  EXPECT_EQ(fill.copies()[0].from, 0);
  EXPECT_EQ(fill.copies()[0].to, 1);
  EXPECT_EQ(fill.copies()[0].tokens, 3);
  EXPECT_EQ(fill.max_load(), 7);
}

TEST(NodeFillTest, ATargetThatIsReachedNeedsNoCopy) {
  NodeFill fill = Filled(2, 1, {{0, 10}, {1, 4}});
  ASSERT_TRUE(fill.Fill(10, {}, kSearchSteps));
  EXPECT_THAT(fill.copies(), IsEmpty());
}

TEST(NodeFillTest, AFailureLeavesNothingBehind) {
  NodeFill fill = Filled(2, 1, {{0, 5}, {0, 5}, {1, 0}});
  EXPECT_FALSE(fill.Fill(4, {}, kSearchSteps)) << "below the mean";
  EXPECT_THAT(fill.copies(), IsEmpty());
  EXPECT_EQ(fill.max_load(), 10);
  NodeFill none = Filled(2, 0, {{0, 5}, {0, 5}, {1, 0}});
  EXPECT_FALSE(none.Fill(5, {}, kSearchSteps)) << "no slots";
  EXPECT_THAT(none.copies(), IsEmpty());
  EXPECT_EQ(none.max_load(), 10);
}

TEST(NodeFillTest, AnEarlierFillIsTakenBackFirst) {
  NodeFill fill = Filled(2, 1, {{0, 10}, {1, 4}});
  ASSERT_TRUE(fill.Fill(7, {}, kSearchSteps));
  ASSERT_TRUE(fill.Fill(8, {}, kSearchSteps));
  ASSERT_THAT(fill.copies(), SizeIs(1));
  EXPECT_EQ(fill.copies()[0].tokens, 2);
}

TEST(NodeFillTest, FixedLoadStaysAndTakesItsSlot) {
  NodeFill fill(2);
  fill.Clear(1);
  fill.AddHome(0, 0, 10);
  fill.AddFixed(1, 4);
  EXPECT_FALSE(fill.Fill(7, {}, kSearchSteps)) << "the only slot of rank 1 is taken";
  fill.Clear(2);
  fill.AddHome(0, 0, 10);
  fill.AddFixed(1, 4);
  EXPECT_TRUE(fill.Fill(7, {}, kSearchSteps));
  // Fixed load cannot be given away.
  fill.Clear(2);
  fill.AddFixed(0, 10);
  fill.AddHome(1, 0, 4);
  EXPECT_FALSE(fill.Fill(9, {}, kSearchSteps));
}

TEST(NodeFillTest, ACopyOfTheMicroBatchBeforeIsUsedFirst) {
  // Rank 0 has 20 tokens of expert 0, ranks 1 and 2 none, target 10: one copy is enough. The past
  // decides which rank gets it.
  NodeFill fill = Filled(3, 1, {{0, 20}, {1, 0}, {2, 0}});
  for (int to : {1, 2}) {
    ASSERT_TRUE(fill.Fill(10, {{0, 0, to, 99}}, kSearchSteps));
    ASSERT_THAT(fill.copies(), SizeIs(1));
    EXPECT_EQ(fill.copies()[0].to, to);
    EXPECT_EQ(fill.copies()[0].tokens, 10);
  }
}

TEST(NodeFillTest, SeparateSurplusesAreSettledWithinSeparateSets) {
  // Two pairs that settle each other: 12 + 8 and 15 + 5, target 10; two copies, not three.
  NodeFill fill = Filled(4, 2, {{0, 12}, {1, 8}, {2, 15}, {3, 5}});
  ASSERT_TRUE(fill.Fill(10, {}, kSearchSteps));
  EXPECT_THAT(fill.copies(), SizeIs(2));
}

TEST(NodeFillTest, OneDivisibleExpertARankIsLevelledWithOneSlotAndOneCopyARankLessOne) {
  // Walker's alias theorem: any loads, one expert a rank, one slot a rank.
  Draw draw(3);
  for (int i = 0; i < 2000; ++i) {
    const int gpus = draw.Between(2, 12);
    std::vector<exhaustive::NodeExpert> experts;
    experts.reserve(gpus);
    for (int g = 0; g < gpus; ++g) experts.push_back({g, draw.OneIn(3) ? 0 : draw.Between(0, 500)});
    NodeFill fill = Filled(gpus, 1, experts);
    ASSERT_TRUE(fill.Fill(fill.least_target(), {}, kSearchSteps)) << "case " << i;
    EXPECT_LE(fill.copies().size(), gpus - 1u) << "case " << i;
  }
}

// Every rule of a fill, from the copies alone.
void CheckCopies(const NodeFill& fill, int gpus, int slots,
                 const std::vector<exhaustive::NodeExpert>& experts, int64_t target) {
  std::vector<int64_t> load(gpus), left;
  std::vector<int> used(gpus);
  std::set<std::pair<int, int>> held;
  for (const auto& expert : experts) {
    load[expert.home] += expert.tokens;
    left.push_back(expert.tokens);
  }
  for (const NodeFill::Copy& copy : fill.copies()) {
    EXPECT_GT(copy.tokens, 0);
    EXPECT_EQ(copy.from, experts[copy.expert].home);
    EXPECT_NE(copy.from, copy.to);
    EXPECT_TRUE(held.insert({copy.expert, copy.to}).second);
    EXPECT_LE(++used[copy.to], slots);
    left[copy.expert] -= copy.tokens;
    EXPECT_GE(left[copy.expert], 0);
    load[copy.from] -= copy.tokens;
    load[copy.to] += copy.tokens;
  }
  EXPECT_LE(*std::max_element(load.begin(), load.end()), target);
}

TEST(NodeFillTest, ReachesTheExhaustiveOptimumInNearlyAllTinyNodes) {
  Draw draw(11);
  int reached = 0;
  constexpr int kCases = 1500;
  for (int i = 0; i < kCases; ++i) {
    const int gpus = draw.Between(2, 4), slots = gpus == 4 ? 1 : draw.Between(1, 2);
    const int a_rank = draw.Between(1, gpus == 4 ? 2 : 3), most = draw.OneIn(2) ? 6 : 90;
    std::vector<exhaustive::NodeExpert> experts;
    experts.reserve(gpus * a_rank);
    for (int e = 0; e < gpus * a_rank; ++e) {
      experts.push_back(
          {e % gpus, draw.OneIn(4) ? draw.Between(0, 4 * most) : draw.Between(0, most)});
    }
    const int64_t least = exhaustive::LeastMaxLoad(gpus, slots, experts);
    NodeFill fill = Filled(gpus, slots, experts);
    if (fill.Fill(least, {}, kSearchSteps)) {
      ++reached;
      CheckCopies(fill, gpus, slots, experts, least);
    }
    EXPECT_FALSE(fill.Fill(least - 1, {}, kSearchSteps)) << "case " << i << ": below the optimum";
  }
  RecordProperty("optimal", reached);
  EXPECT_GE(reached, kCases * 99 / 100);
}

}  // namespace
}  // namespace relibra

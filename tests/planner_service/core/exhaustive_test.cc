#include "tests/planner_service/core/exhaustive.h"

#include "gtest/gtest.h"

namespace relibra::exhaustive {
namespace {

TEST(ExhaustiveTest, OneSlotLetsTwoRanksShareOneExpert) {
  // 10 + 0 over two ranks: 5 each with a replica, 10 without.
  EXPECT_EQ(LeastMaxLoad(2, 1, {{0, 10}, {1, 0}}), 5);
  EXPECT_EQ(LeastMaxLoad(2, 0, {{0, 10}, {1, 0}}), 10);
}

TEST(ExhaustiveTest, SmallExpertsNeedSeveralSlots) {
  // Rank 0 has 4 experts of 3, rank 1 none with load: 6 need two replicas, one gives 9.
  const std::vector<NodeExpert> experts = {{0, 3}, {0, 3}, {0, 3}, {0, 3}, {1, 0}};
  EXPECT_EQ(LeastMaxLoad(2, 1, experts), 9);
  EXPECT_EQ(LeastMaxLoad(2, 2, experts), 6);
}

TEST(ExhaustiveTest, PlacementsArePairedBest) {
  // Sorted pairs 9 + 1 and 5 + 4 give 10 and 9 on two ranks; no other pairing is below 10.
  EXPECT_EQ(LeastSumOfMaxLoads(1, 2, 0, std::vector<uint32_t>{9, 5, 4, 1}, 4), 10);
  EXPECT_EQ(LeastSumOfMaxLoads(2, 1, 0, std::vector<uint32_t>{9, 5, 4, 1}, 4), 10);
}

}  // namespace
}  // namespace relibra::exhaustive

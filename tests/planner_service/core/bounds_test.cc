#include "planner_service/core/bounds.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace relibra {
namespace {

using Totals = std::vector<uint32_t>;

TEST(BoundsTest, IsTheMeanInWholeTokens) {
  // 10 tokens on 4 ranks: some rank has 3, the mean is 2.5.
  EXPECT_DOUBLE_EQ(LowerBound({1, 4, 2}, Totals{3, 3, 2, 2}, 0), 3 / 2.5);
  EXPECT_DOUBLE_EQ(LowerBound({1, 4, 2}, Totals{3, 3, 3, 3}, 0), 1);
}

TEST(BoundsTest, SpreadsTheHottestExpertAndItsNeighboursOverTheRanksThatMayServeThem) {
  // 16 tokens, mean 4 on 4 ranks; the hottest expert has 12, and in a node of two experts at least
  // 1 comes with it.
  const Totals totals = {12, 2, 1, 1};
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 0}, totals, std::nullopt), 12 / 4.0) << "its home alone";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, 0), 7 / 4.0) << "13 on the ranks of its node";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, 1), 5 / 4.0) << "and one bridge";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, std::nullopt), 1) << "as many as fit";
  EXPECT_DOUBLE_EQ(LowerBound({4, 1, 1}, totals, 0), 12 / 4.0);
  EXPECT_DOUBLE_EQ(LowerBound({4, 1, 1}, totals, 3), 6 / 4.0) << "one rank a node takes one bridge";
  EXPECT_DOUBLE_EQ(LowerBound({1, 4, 1}, totals, 2), 1) << "there is no other node";
}

TEST(BoundsTest, SomeGroupHasTwoOfTheHottestWhenTheyAreMoreThanTheGroups) {
  // Two nodes of one rank, three experts of 10 and one of 0: one node has 20, the mean is 15.
  EXPECT_DOUBLE_EQ(LowerBound({2, 1, 0}, Totals{10, 0, 10, 10}, 0), 20 / 15.0);
  EXPECT_DOUBLE_EQ(LowerBound({2, 1, 2}, Totals{10, 0, 10, 10}, 0), 20 / 15.0);
  // Three of the five hottest share a node: 18 of 30, the mean is 15.
  EXPECT_DOUBLE_EQ(LowerBound({2, 1, 1}, Totals{6, 0, 6, 6, 6, 6}, 0), 18 / 15.0);
}

TEST(BoundsTest, IsNeverAboveTheBestOfAllHomes) {
  // Without slots the least imbalance is that of the best partition, found by trying them all:
  // every expert in turn goes to one of three ranks that has room.
  constexpr int kRanks = 3, kExperts = 6;
  std::mt19937 random(7);
  int tight = 0;
  for (int i = 0; i < 300; ++i) {
    Totals totals(kExperts);
    int64_t total = 0;
    for (uint32_t& tokens : totals) {
      tokens = random() % 3 == 0 ? random() % 40 : random() % 8;
      total += tokens;
    }
    if (total == 0) continue;
    int64_t best = total;
    for (int code = 0; code < 729; ++code) {  // 3^6
      int64_t load[kRanks] = {};
      int count[kRanks] = {};
      for (int e = 0, rest = code; e < kExperts; ++e, rest /= kRanks) {
        load[rest % kRanks] += totals[e];
        ++count[rest % kRanks];
      }
      if (*std::max_element(count, count + kRanks) > kExperts / kRanks) continue;
      best = std::min(best, *std::max_element(load, load + kRanks));
    }
    const double least = static_cast<double>(best) * kRanks / static_cast<double>(total);
    const double bound = LowerBound({kRanks, 1, 0}, totals, 0);
    EXPECT_LE(bound, least + 1e-12);
    tight += bound > least - 1e-12;
  }
  EXPECT_GT(tight, 100) << "a bound that is seldom reached says little";
}

TEST(BoundsTest, IsOneWithoutTokens) {
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, Totals{0, 0, 0, 0}, 0), 1);
}

TEST(BoundsTest, DoesNotOverflow) {
  // 4 experts of 2^32 - 1 tokens on 4 ranks.
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, Totals(4, 0xffffffffu), 0), 1);
}

}  // namespace
}  // namespace relibra

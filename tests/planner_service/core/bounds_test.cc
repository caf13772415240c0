#include "planner_service/core/bounds.h"

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

TEST(BoundsTest, SpreadsTheHottestExpertOverTheRanksThatMayHoldIt) {
  // 16 tokens, mean 4 on 4 ranks; the hottest expert has 12.
  const Totals totals = {12, 2, 1, 1};
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 0}, totals, std::nullopt), 12 / 4.0) << "its home alone";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, 0), 6 / 4.0) << "the ranks of its node";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, 1), 4 / 4.0) << "and one bridge";
  EXPECT_DOUBLE_EQ(LowerBound({2, 2, 1}, totals, std::nullopt), 1) << "as many as fit";
  EXPECT_DOUBLE_EQ(LowerBound({4, 1, 1}, totals, 0), 12 / 4.0);
  EXPECT_DOUBLE_EQ(LowerBound({4, 1, 1}, totals, 3), 6 / 4.0) << "one rank a node takes one bridge";
  EXPECT_DOUBLE_EQ(LowerBound({1, 4, 1}, totals, 2), 1) << "there is no other node";
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

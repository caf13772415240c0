#include "planner_service/core/gram_swaps.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using Groups = std::vector<int32_t>;

// The sum over micro-batches and groups of the squared share of the micro-batch's tokens.
double QuadraticOf(const std::vector<uint32_t>& totals, int experts, int groups,
                   const Groups& node) {
  double sum = 0;
  for (size_t begin = 0; begin < totals.size(); begin += experts) {
    double total = 0;
    std::vector<double> load(groups);
    for (int e = 0; e < experts; ++e) {
      load[node[e]] += totals[begin + e];
      total += totals[begin + e];
    }
    for (double l : load) sum += total > 0 ? l / total * (l / total) : 0;
  }
  return sum;
}

void ExpectEqualSizes(const Groups& node, int groups) {
  std::vector<size_t> sizes(groups);
  for (int32_t g : node) {
    ASSERT_GE(g, 0);
    ASSERT_LT(g, groups);
    ++sizes[g];
  }
  for (size_t size : sizes) EXPECT_EQ(size, node.size() / groups);
}

TEST(GramSwapsTest, SeparatesExpertsThatAreHotTogether) {
  // Experts 0 and 1 are hot in micro-batch 0, experts 2 and 3 in micro-batch 1.
  const std::vector<uint32_t> totals = {9, 9, 1, 1, 1, 1, 9, 9};
  const ExpertLoads loads(totals, 4);
  for (const auto& start : {std::optional<Groups>(), std::optional<Groups>({0, 0, 1, 1})}) {
    const Groups node = GramSwaps(loads, 2, start);
    EXPECT_NE(node[0], node[1]);
    EXPECT_NE(node[2], node[3]);
  }
}

TEST(GramSwapsTest, KeepsGroupsEqualAndNeverWorsensItsOwnObjective) {
  Draw draw(1);
  for (int i = 0; i < 400; ++i) {
    const int groups = draw.Between(1, 6), experts = groups * draw.Between(1, 6);
    std::vector<uint32_t> totals;
    const int most = draw.OneIn(2) ? 4 : 100000;
    const int micro_batches = draw.Between(1, 20);
    for (int m = 0; m < micro_batches; ++m) {
      const bool empty = draw.OneIn(6);
      for (int e = 0; e < experts; ++e) totals.push_back(empty ? 0 : draw.Between(0, most));
    }
    Groups start;
    for (int e = 0; e < experts; ++e) start.push_back(e % groups);
    draw.Shuffle(start);
    const ExpertLoads loads(totals, experts);
    const Groups fresh = GramSwaps(loads, groups, std::nullopt);
    const Groups swapped = GramSwaps(loads, groups, start);
    ExpectEqualSizes(fresh, groups);
    ExpectEqualSizes(swapped, groups);
    // The search works in single precision.
    const double before = QuadraticOf(totals, experts, groups, start);
    EXPECT_LE(QuadraticOf(totals, experts, groups, swapped), before * (1 + 1e-5));
  }
}

TEST(GramSwapsTest, IsTheSameWhateverTheScale) {
  // Shares decide, so twice the tokens in one micro-batch change nothing.
  const std::vector<uint32_t> totals = {5, 3, 8, 1, 7, 2, 2, 6, 1, 9, 4, 4};
  std::vector<uint32_t> scaled = totals;
  for (size_t i = 0; i < 6; ++i) scaled[i] *= 2;
  EXPECT_EQ(GramSwaps(ExpertLoads(totals, 6), 2, std::nullopt),
            GramSwaps(ExpertLoads(scaled, 6), 2, std::nullopt));
}

TEST(GramSwapsTest, EqualLoadsStayWhereTheyAre) {
  const ExpertLoads loads(std::vector<uint32_t>(3 * 8, 17), 8);
  const Groups start = {3, 1, 0, 2, 2, 0, 1, 3};
  EXPECT_EQ(GramSwaps(loads, 4, start), start);
}

}  // namespace
}  // namespace relibra

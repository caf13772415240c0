#include "planner_service/core/expert_totals.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();

TEST(ExpertTotalsTest, SumsSourcesOfTheLayerAskedFor) {
  // [m][l][s][e], 2 micro-batches, 2 layers, 2 sources, 2 experts
  const Loads loads = *Loads::FromCounts({2, 2, 2, 2}, {1, 2, 3, 4,     // m 0, l 0
                                                        5, 6, 7, 8,     // m 0, l 1
                                                        9, 10, 11, 12,  // m 1, l 0
                                                        13, 14, 15, 16});
  EXPECT_THAT(*SumSources(loads, 0), ElementsAre(1 + 3, 2 + 4, 9 + 11, 10 + 12));
  EXPECT_THAT(*SumSources(loads, 1), ElementsAre(5 + 7, 6 + 8, 13 + 15, 14 + 16));
}

TEST(ExpertTotalsTest, TheLargestSumThatFitsIsTaken) {
  const Loads loads = *Loads::FromCounts({1, 1, 2, 1}, {kMost - 7, 7});
  EXPECT_THAT(*SumSources(loads, 0), ElementsAre(kMost));
}

TEST(ExpertTotalsTest, AnOverflowNamesLayerMicroBatchAndExpert) {
  Loads loads = *Loads::Create({3, 2, 2, 40});
  loads.Mutable(2, 1)[0 * 40 + 37] = kMost;
  loads.Mutable(2, 1)[1 * 40 + 37] = 1;
  EXPECT_TRUE(SumSources(loads, 0).ok());
  const absl::Status status = SumSources(loads, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, micro-batch 2, expert 37"));
}

TEST(ExpertTotalsTest, ASumThatWrapsTwiceIsFoundThoughItLooksSmall) {
  // 4 x 2^31 = 2 x 2^32, which is 0 in 32 bits.
  const Loads loads = *Loads::FromCounts({1, 1, 4, 1}, std::vector<uint32_t>(4, 1u << 31));
  EXPECT_EQ(SumSources(loads, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace relibra

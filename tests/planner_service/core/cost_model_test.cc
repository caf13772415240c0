#include "planner_service/core/cost_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace relibra {
namespace {

using ::testing::DoubleNear;

constexpr ExpertSizes kSizes{.weight_bytes = 100,
                             .gradient_bytes = 200,
                             .optimizer_bytes = 600,
                             .flops_per_token = 10,
                             .token_bytes = 4};
constexpr GpuRates kRates{
    .gemm_flops = 1000, .in_node_bytes_second = 50, .cross_node_bytes_second = 20};

PolicyResult TwoMicroBatches() {
  PolicyResult result;
  result.work = {{.most_rank_pairs = 30,
                  .most_cross_node_rows = 10,
                  .most_in_node_rows = 5,
                  .most_fetched = 2,
                  .most_returned = 1},
                 {.most_rank_pairs = 20, .most_cross_node_rows = 1, .most_in_node_rows = 25}};
  result.step = {.most_in_node_moves = 3, .most_cross_node_moves = 2, .most_bridges = 1};
  return result;
}

// compute     3 x 10 x (30 + 20) / 1000                            = 1.5
// all-to-all  4 x 4 x (max(10/20, 5/50) + max(1/20, 25/50))        = 16
// copies      (100 x 2 + 200 x 1) / 50                             = 8
// once        (300 x 1 + 700 x 2) / 20 + 700 x 3 / 50              = 85 + 42
TEST(CostModelTest, IsTheFormulaOfItsHeader) {
  const StepTime time = ModelStepTime(TwoMicroBatches(), kSizes, kRates);
  EXPECT_THAT(time.compute_seconds, DoubleNear(1.5, 1e-12));
  EXPECT_THAT(time.all_to_all_seconds, DoubleNear(16, 1e-12));
  EXPECT_THAT(time.copy_seconds, DoubleNear(8, 1e-12));
  EXPECT_THAT(time.move_seconds, DoubleNear(127, 1e-12));
  EXPECT_THAT(time.total_seconds(), DoubleNear(152.5, 1e-9));
}

TEST(CostModelTest, ChargesOnlyTheExposedShareOfCopiesAndMoves) {
  const StepTime time = ModelStepTime(TwoMicroBatches(), kSizes, kRates, /*exposure=*/0.25);
  EXPECT_THAT(time.compute_seconds, DoubleNear(1.5, 1e-12));
  EXPECT_THAT(time.all_to_all_seconds, DoubleNear(16, 1e-12));
  EXPECT_THAT(time.copy_seconds, DoubleNear(2, 1e-12));
  EXPECT_THAT(time.move_seconds, DoubleNear(127.0 / 4, 1e-12));
}

TEST(CostModelTest, TakesNoTimeForNoWork) {
  EXPECT_EQ(ModelStepTime(PolicyResult(), kSizes, kRates).total_seconds(), 0);
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/layer_planner.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

using Homes = std::vector<int32_t>;
using Totals = std::vector<uint32_t>;

// Moves limited, so that nothing but the given choices is considered.
PlanOptions Limited(int bridges = 0) {
  PlanOptions options;
  options.max_moves = 1000;
  options.bridges = bridges;
  return options;
}

TEST(LayerPlannerTest, CostAddsMovesBridgesAndFetchedReplicas) {
  // 2 x 2 ranks; experts 0 and 2 change places. Node loads 12 and 12; ranks 9, 3, 7, 5 become 6
  // each with one replica a node.
  PlanOptions options = Limited();
  options.move_cost = 0.125;
  options.replica_cost = 0.25;
  const Homes current = {2, 1, 0, 3};
  const LayerOutcome outcome =
      PlanReplicasAndBridges({2, 2, 1}, Totals{9, 3, 7, 5}, current, {0, 1, 2, 3}, options);
  EXPECT_EQ(outcome.objective, 6);
  EXPECT_THAT(outcome.plan.moves, SizeIs(2));
  EXPECT_THAT(outcome.plan.replicas[0], SizeIs(2));
  EXPECT_EQ(outcome.bridges, 0);
  EXPECT_DOUBLE_EQ(outcome.cost, 6 + 2 * 0.125 + 2 * 0.25);
}

TEST(LayerPlannerTest, BridgesAreMadeOnlyWhereTheyGainMoreThanTheyCost) {
  // Two nodes of one rank with 10 and 4: a bridge levels them to 7.
  const Homes homes = {0, 1};
  PlanOptions options = Limited(1);
  options.move_cost = 1;
  EXPECT_EQ(PlanReplicasAndBridges({2, 1, 1}, Totals{10, 4}, homes, homes, options).objective, 7);
  options.move_cost = 4;
  const LayerOutcome none = PlanReplicasAndBridges({2, 1, 1}, Totals{10, 4}, homes, homes, options);
  EXPECT_EQ(none.objective, 10);
  EXPECT_EQ(none.bridges, 0);
}

TEST(LayerPlannerTest, APlanWhoseMeanImbalanceIsWorseCostsInfinitelyMuch) {
  // Two ranks, no slots: 202 : 200 and 2 : 2. Exchanging experts 1 and 2 gives 201 : 201 and 3 : 1:
  // as many tokens at the heaviest ranks, but a mean imbalance of 1.25 after 1.002.
  const Totals totals = {101, 101, 100, 100, 2, 0, 1, 1};
  const Homes current = {0, 0, 1, 1};
  const LayerOutcome worse =
      PlanReplicasAndBridges({1, 2, 0}, totals, current, {0, 1, 0, 1}, Limited());
  EXPECT_EQ(worse.objective, 201 + 3);
  EXPECT_EQ(worse.cost, std::numeric_limits<double>::infinity());
  const LayerOutcome still = PlanReplicasAndBridges({1, 2, 0}, totals, current, current, Limited());
  EXPECT_EQ(still.cost, 202 + 2);
}

HomeChoice ChoiceOf(const Homes& current, const Homes& homes, int64_t objective) {
  HomeChoice choice{homes, 0, objective};
  for (size_t e = 0; e < homes.size(); ++e) choice.moves += homes[e] != current[e];
  return choice;
}

TEST(LayerPlannerTest, FewerMovesAreTakenWhereReplicasMakeThemAsGood) {
  // One slot a rank. At home node loads are 11 and 9, ranks flatten to 6 (5.5 rounded up) and 5.
  // Level nodes of 10 would flatten to 5 and gain one token.
  const Totals totals = {8, 3, 7, 2};
  const Homes current = {0, 1, 2, 3}, level = {0, 2, 3, 1};  // {8, 2} and {3, 7}
  const std::vector<HomeChoice> choices = {ChoiceOf(current, current, 11),
                                           ChoiceOf(current, level, 10)};
  const LayerOutcome gains = PlanLayer({2, 2, 1}, totals, current, choices, Limited());
  EXPECT_EQ(gains.objective, 5);
  PlanOptions dear = Limited();
  dear.move_cost = 0.5;
  EXPECT_THAT(PlanLayer({2, 2, 1}, totals, current, choices, dear).plan.moves, IsEmpty())
      << "3 moves cost 1.5 tokens and gain one";
}

TEST(LayerPlannerTest, ALongerListOfChoicesNeverEndsWorse) {
  Draw draw(61);
  for (int i = 0; i < 400; ++i) {
    InstanceLimits limits;
    limits.layers = 1;
    const Instance x = DrawInstance(draw, limits);
    const LoadShape& shape = x.loads.shape();
    Totals totals(size_t{1} * shape.micro_batches * shape.experts);
    int64_t all = 0;
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (int s = 0; s < shape.sources; ++s) {
        for (int e = 0; e < shape.experts; ++e) {
          totals[m * shape.experts + e] += x.loads.At(m, 0)[s * shape.experts + e];
          all += x.loads.At(m, 0)[s * shape.experts + e];
        }
      }
    }
    const PlanOptions options = Limited(draw.Between(0, 2));
    const std::vector<HomeChoice> choices =
        HomeChoices(x.topology, totals, x.current[0], Effort::kFast, true, 0);
    double last = std::numeric_limits<double>::infinity();
    for (size_t n = 1; n <= choices.size(); ++n) {
      const LayerOutcome outcome = PlanLayer(x.topology, totals, x.current[0],
                                             absl::MakeConstSpan(choices).first(n), options);
      // The slack that may be spent to save copies: under 0.1 % of the heaviest ranks.
      ASSERT_LE(outcome.cost, last + std::floor(0.001 * last)) << x;
      last = std::min(last, outcome.cost);
    }
  }
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/evaluate.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace relibra {
namespace {

using ::testing::DoubleNear;

constexpr double kTiny = 1e-9;

// 2 nodes x 2 ranks, 4 experts, expert e at home on rank e, one layer, two micro-batches:
//
//   loads, source rank by expert   micro-batch 0    micro-batch 1
//                            r0    8 0 0 0          0 0 0 4
//                            r1    4 4 0 0          0 0 4 0
//                            r2    8 0 0 0          0 4 0 0
//                            r3    0 0 4 4          4 0 0 0
//
// Expert 0 has a replica on rank 1 that serves 10 of 20 in micro-batch 0 and 2 of 4 in
// micro-batch 1, expert 3 a bridge on rank 0 that serves 2 of 4 in both.
//   mb 0: ranks [10+2, 4+10, 4, 2] = [12, 14, 4, 2], nodes [26, 6], 32 pairs
//         splits: r0's 8 of e0 stay on r0, r1's 4 on r1, r2's 8 go 2 to r0 and 6 to r1; e3: r3
//         keeps its own 2 and sends 2 to r0 elsewhere: r2 8 (across), r3: 2 to r0 (across), 4 to r2
//         -> cross-rank 14, cross-node 10
//   mb 1: ranks [2+2, 4+2, 4, 2] = [4, 6, 4, 2], nodes [10, 6], 16 pairs
//         splits: r3's 4 of e0: 2 to r0, 2 to r1; r0's 4 of e3: 2 stay on r0, 2 to r3
//         r1's 4 to r2, r2's 4 to r1: cross-rank 14, cross-node 4 + 2 + 4 + 4 = 14
struct Example {
  Loads loads = Loads::FromCounts({.micro_batches = 2, .layers = 1, .sources = 4, .experts = 4},
                                  {8, 0, 0, 0, 4, 4, 0, 0, 8, 0, 0, 0, 0, 0, 4, 4,  //
                                   0, 0, 0, 4, 0, 0, 4, 0, 0, 4, 0, 0, 4, 0, 0, 0})
                    .value();
  Plan plan;

  Example() {
    plan.topology = {.nodes = 2, .gpus_per_node = 2, .replica_slots = 2};
    plan.layers.resize(1);
    plan.layers[0].home_rank = {0, 1, 2, 3};
    plan.layers[0].replicas = {
        {{.expert = 0, .rank = 1, .slot = 0, .tokens = 10},
         {.expert = 3, .rank = 0, .slot = 0, .tokens = 2, .cross_node = true}},
        {{.expert = 0, .rank = 1, .slot = 0, .tokens = 2},
         {.expert = 3, .rank = 0, .slot = 0, .tokens = 2, .cross_node = true}}};
  }
};

TEST(EvaluateTest, CountsWhatTheRanksComputeAndWhatTravels) {
  const Example x;
  const PolicyResult result = Evaluate("relibra", x.loads, x.plan, {}, InOrder);
  EXPECT_EQ(result.policy, "relibra");
  ASSERT_EQ(result.work.size(), 2u);
  EXPECT_EQ(result.work[0].pairs, 32);
  EXPECT_EQ(result.work[0].most_rank_pairs, 14);
  EXPECT_EQ(result.work[0].most_node_pairs, 26);
  EXPECT_EQ(result.work[0].cross_rank_pairs, 14);
  EXPECT_EQ(result.work[0].cross_node_pairs, 10);
  EXPECT_EQ(result.work[1].pairs, 16);
  EXPECT_EQ(result.work[1].most_rank_pairs, 6);
  EXPECT_EQ(result.work[1].most_node_pairs, 10);
  EXPECT_EQ(result.work[1].cross_rank_pairs, 14);
  EXPECT_EQ(result.work[1].cross_node_pairs, 14);
  EXPECT_THAT(result.imbalance_mean, DoubleNear((14 / 8.0 + 6 / 4.0) / 2, kTiny));
  EXPECT_THAT(result.imbalance_p99, DoubleNear(14 / 8.0, kTiny));
  EXPECT_THAT(result.imbalance_max, DoubleNear(14 / 8.0, kTiny));
  EXPECT_THAT(result.node_imbalance_mean, DoubleNear((26 / 16.0 + 10 / 8.0) / 2, kTiny));
}

TEST(EvaluateTest, CountsCopiesBridgesAndWhatIsFetchedAgain) {
  Example x;
  PolicyResult result = Evaluate("", x.loads, x.plan, {}, InOrder);
  EXPECT_EQ(result.copies, 2);
  EXPECT_EQ(result.fetched, 1) << "the second micro-batch has it already";
  EXPECT_EQ(result.step.bridges, 1);
  EXPECT_EQ(result.step.most_bridges, 1);
  EXPECT_THAT(result.copies_per_node, DoubleNear(0.5, kTiny));
  EXPECT_EQ(result.work[0].most_returned, 1);
  EXPECT_EQ(result.work[1].most_returned, 1);
  result = Evaluate("", x.loads, x.plan, {.replicas_stay = true}, InOrder);
  EXPECT_EQ(result.work[0].most_returned, 0);
  EXPECT_EQ(result.work[1].most_returned, 1);
}

TEST(EvaluateTest, CountsMovesInsideAndBetweenNodesByTheBusiestRank) {
  Example x;
  x.plan.layers[0].moves = {{0, 1, 0}, {1, 0, 1}, {2, 1, 2}, {3, 1, 3}};
  const PolicyResult result = Evaluate("", x.loads, x.plan, {}, InOrder);
  EXPECT_EQ(result.step.moves, 4);
  EXPECT_EQ(result.step.cross_node_moves, 2);
  EXPECT_EQ(result.step.most_in_node_moves, 1);
  EXPECT_EQ(result.step.most_cross_node_moves, 2) << "rank 1 sends two";
}

// With K = 1 every pair is a row. Micro-batch 0: r2 sends 2 to r0 and 6 to r1, both by way of r0
// (the rank of node 0 with its local number); r3 sends 2 to r0 by way of r1, and 4 to r2 inside.
//   across: out r2 8, r3 2; in r0 8, r1 2 -> most 8, mean 10 / 4
//   inside: r0 -> r1 6, r1 -> r0 2, r3 -> r2 4 -> most 6, mean 12 / 4
TEST(EvaluateTest, CountsRowsByWayOfTheRankWithTheSendersLocalNumber) {
  const Example x;
  const LayerWork work = Evaluate("", x.loads, x.plan, {.top_k = 1}, InOrder).work[0];
  EXPECT_THAT(work.most_cross_node_rows, DoubleNear(8, kTiny));
  EXPECT_THAT(work.mean_cross_node_rows, DoubleNear(2.5, kTiny));
  EXPECT_THAT(work.most_in_node_rows, DoubleNear(6, kTiny));
  EXPECT_THAT(work.mean_in_node_rows, DoubleNear(3, kTiny));
}

// With K = 2 r2's 8 pairs are 4 tokens, all of whose choices are in node 0: 4 rows cross.
// Inside node 0, 6/8 of its pairs are on r1: 4 (1 - (1/4)^2) = 3.75 rows.
TEST(EvaluateTest, SendsATokenOnceToANodeHoweverManyOfItsExpertsAreThere) {
  const Example x;
  const LayerWork work = Evaluate("", x.loads, x.plan, {.top_k = 2}, InOrder).work[0];
  EXPECT_THAT(work.most_cross_node_rows, DoubleNear(4, kTiny));
  EXPECT_THAT(work.most_in_node_rows, DoubleNear(3.75, kTiny));
}

TEST(EvaluateTest, CountsAnEmptyMicroBatchAsBalanced) {
  Example x;
  std::fill(x.loads.Mutable(1, 0).begin(), x.loads.Mutable(1, 0).end(), 0);
  for (Replica& r : x.plan.layers[0].replicas[1]) r.tokens = 0;
  const PolicyResult result = Evaluate("", x.loads, x.plan, {.top_k = 2}, InOrder);
  EXPECT_THAT(result.imbalance_mean, DoubleNear((14 / 8.0 + 1) / 2, kTiny));
  EXPECT_EQ(result.work[1].most_cross_node_rows, 0);
}

// 200 entries, of which two are bad: the 198th of the ordered values is still good.
TEST(EvaluateTest, TakesTheNearestRankAsP99) {
  PolicyResult result;
  result.work.assign(200, {.pairs = 10, .most_rank_pairs = 5, .most_node_pairs = 10});
  result.work[3].most_rank_pairs = result.work[77].most_rank_pairs = 10;
  Summarise(1, 2, result);
  EXPECT_EQ(result.imbalance_p99, 1);
  EXPECT_EQ(result.imbalance_max, 2);
  result.work[78].most_rank_pairs = 10;
  Summarise(1, 2, result);
  EXPECT_EQ(result.imbalance_p99, 2);
}

// The planner's own summary is worked out from homes and quotas; the evaluation from the splits.
TEST(EvaluateTest, AgreesWithTheSummaryOfRandomPlans) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const Topology topology{.nodes = 1 + static_cast<int>(random() % 3),
                            .gpus_per_node = 1 + static_cast<int>(random() % 4),
                            .replica_slots = static_cast<int>(random() % 3)};
    const int ranks = topology.num_ranks();
    const LoadShape shape{.micro_batches = 1 + static_cast<int>(random() % 3),
                          .layers = 1 + static_cast<int>(random() % 2),
                          .sources = ranks,
                          .experts = ranks * (1 + static_cast<int>(random() % 3))};
    Loads loads = Loads::Create(shape).value();
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (int l = 0; l < shape.layers; ++l) {
        for (uint32_t& load : loads.Mutable(m, l)) load = random() % 4 == 0 ? random() % 50 : 1;
      }
    }
    const Placement current = LinearPlacement(topology, shape.layers, shape.experts);
    const auto plan = PlanStep(loads, topology, current, {}, InOrder);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const PolicyResult result = Evaluate("", loads, *plan, {.top_k = 2}, InOrder);
    EXPECT_THAT(result.imbalance_mean, DoubleNear(plan->summary.imbalance_after, kTiny));
    EXPECT_EQ(result.pairs, plan->summary.tokens);
    EXPECT_EQ(result.step.moves, plan->summary.moves);
    EXPECT_EQ(result.step.bridges, plan->summary.bridges);
    EXPECT_EQ(result.copies, plan->summary.replicas);
  }
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/planner.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/split.h"
#include "planner_service/core/split_check.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();

Instance Empty(const Topology& topology, int micro_batches, int layers, int experts) {
  return {topology, *Loads::Create({micro_batches, layers, topology.num_ranks(), experts}),
          LinearPlacement(topology, layers, experts)};
}

// One micro-batch and layer; source rank 0 sends totals[e] to expert e.
Instance Single(const Topology& topology, const std::vector<uint32_t>& totals) {
  Instance x = Empty(topology, 1, 1, static_cast<int>(totals.size()));
  std::copy(totals.begin(), totals.end(), x.loads.Mutable(0, 0).begin());
  return x;
}

Plan PlanOf(const Instance& x, const PlanOptions& options = {}) {
  absl::StatusOr<Plan> plan = PlanStep(x.loads, x.topology, x.current, options, InOrder);
  EXPECT_TRUE(plan.ok()) << plan.status();
  absl::Status status = CheckPlan(x.loads, x.topology, x.current, *plan);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<Split> splits;
  status = CheckAllSplits(x.loads, *plan, [&](int l, int m) {
    SplitTokens(x.topology, x.loads.At(m, l), plan->layers[l].home_rank,
                plan->layers[l].replicas[m], splits);
    return absl::MakeConstSpan(splits);
  });
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(plan);
}

std::string ErrorOf(const Instance& x, const PlanOptions& options = {}) {
  const absl::Status status = PlanStep(x.loads, x.topology, x.current, options, InOrder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(PlannerTest, PlansAStepAsWorkedOutByHand) {
  // 2 x 2 ranks, expert e on rank e, 24 : 4 : 2 : 2. The nodes can be levelled no better than with
  // 24 + 2 in one and 4 + 2 in the other; replicas take ranks to 13 and 13, the other node is
  // below.
  const Instance x = Single({2, 2, 1}, {24, 4, 2, 2});
  PlanOptions options;
  options.bridges = 0;
  const Plan plan = PlanOf(x, options);
  EXPECT_DOUBLE_EQ(plan.summary.imbalance_before, 24 / 8.0);
  EXPECT_DOUBLE_EQ(plan.summary.imbalance_after, 13 / 8.0);
  EXPECT_DOUBLE_EQ(plan.summary.lower_bound, 13 / 8.0) << "24 with at least 2 beside it";
  EXPECT_EQ(plan.summary.tokens, 32);
  EXPECT_THAT(plan.layers[0].moves, SizeIs(2)) << "expert 1 leaves node 0, another comes";
  EXPECT_THAT(plan.layers[0].replicas[0], SizeIs(1)) << "node 1 has slack enough";
}

TEST(PlannerTest, AllZeroLoadsGiveAPlanThatDoesNothing) {
  for (const Topology& topology : {Topology{1, 1, 0}, Topology{2, 2, 2}, Topology{3, 1, 1}}) {
    const Instance x = Empty(topology, 3, 2, topology.num_ranks() * 2);
    const Plan plan = PlanOf(x);
    EXPECT_EQ(plan.summary.moves + plan.summary.replicas + plan.summary.bridges, 0);
    EXPECT_EQ(plan.summary.tokens, 0);
    EXPECT_DOUBLE_EQ(plan.summary.imbalance_before, 1);
    EXPECT_DOUBLE_EQ(plan.summary.imbalance_after, 1);
    EXPECT_DOUBLE_EQ(plan.summary.lower_bound, 1);
  }
}

TEST(PlannerTest, OneRankHasNothingToBalance) {
  const Instance x = Single({1, 1, 2}, {7, 0, 3});
  const Plan plan = PlanOf(x);
  EXPECT_THAT(plan.layers[0].moves, IsEmpty());
  EXPECT_THAT(plan.layers[0].replicas[0], IsEmpty());
  EXPECT_DOUBLE_EQ(plan.summary.imbalance_after, 1);
}

TEST(PlannerTest, OneExpertOnOneRankIsEnough) {
  EXPECT_DOUBLE_EQ(PlanOf(Single({1, 1, 0}, {5})).summary.imbalance_after, 1);
}

TEST(PlannerTest, OneExpertARankIsLevelledByReplicas) {
  const Plan plan = PlanOf(Single({1, 8, 1}, {80, 1, 2, 3, 4, 5, 1, 0}));
  EXPECT_DOUBLE_EQ(plan.summary.imbalance_after, 1) << "96 tokens, 12 a rank";
}

TEST(PlannerTest, WithoutSlotsHomesAloneBalance) {
  // 4 + 1 and 3 + 2 on two ranks.
  const Plan plan = PlanOf(Single({1, 2, 0}, {4, 3, 2, 1}));
  EXPECT_DOUBLE_EQ(plan.summary.imbalance_after, 1);
  EXPECT_EQ(plan.summary.replicas, 0);
  EXPECT_EQ(plan.summary.moves, 2);
}

TEST(PlannerTest, NodesOfSeventyTwoRanksAreLevelled) {
  Draw draw(72);
  Instance x = Empty({2, 72, 2}, 2, 1, 288);
  for (int m = 0; m < 2; ++m) {
    for (uint32_t& count : x.loads.Mutable(m, 0)) count = draw.Between(0, draw.OneIn(50) ? 90 : 9);
  }
  const Plan plan = PlanOf(x);
  EXPECT_GT(plan.summary.imbalance_before, 1.1);
  EXPECT_LT(plan.summary.imbalance_after, 1.01);
}

TEST(PlannerTest, AThousandRanksWithOneExpertEachArePlanned) {
  Draw draw(1024);
  Instance x = Empty({128, 8, 2}, 1, 1, 1024);
  for (int e = 0; e < 1024; ++e) x.loads.Mutable(0, 0)[(e % 7) * 1024 + e] = draw.Between(0, 5000);
  const Plan plan = PlanOf(x);
  EXPECT_GT(plan.summary.imbalance_before, 1.9);
  EXPECT_LT(plan.summary.imbalance_after, 1.1);
}

TEST(PlannerTest, LoadsUpToThirtyTwoBitsArePlannedExactly) {
  // Four experts of 2^32 - 1 and four of 0.
  const Plan plan = PlanOf(Single({2, 2, 1}, {kMost, kMost, kMost, kMost, 0, 0, 0, 0}));
  EXPECT_LT(plan.summary.imbalance_after, 1.001);
  EXPECT_EQ(plan.summary.tokens, 4 * int64_t{kMost});
}

TEST(PlannerTest, ASumBeyondThirtyTwoBitsNamesItsCell) {
  Instance x = Empty({1, 2, 1}, 2, 3, 4);
  x.loads.Mutable(1, 2)[0 * 4 + 3] = kMost;
  x.loads.Mutable(1, 2)[1 * 4 + 3] = 1;
  EXPECT_THAT(ErrorOf(x), HasSubstr("layer 2, micro-batch 1, expert 3"));
}

TEST(PlannerTest, TopologiesThatDoNotFitAreNamed) {
  Instance x = Empty({2, 2, 1}, 1, 1, 8);
  x.topology.nodes = 1;
  EXPECT_THAT(ErrorOf(x), HasSubstr("expected 2 source ranks, got 4"));
  x.topology = {3, 1, 1};
  EXPECT_THAT(ErrorOf(x), HasSubstr("8 experts do not divide evenly over 3 ranks"));
  x.topology = {0, 4, 1};
  EXPECT_THAT(ErrorOf(x), HasSubstr("nodes"));
  x.topology = {2, -2, 1};
  EXPECT_THAT(ErrorOf(x), HasSubstr("gpus_per_node"));
  x.topology = {2, 2, -1};
  EXPECT_THAT(ErrorOf(x), HasSubstr("replica_slots"));
  x.topology = {std::numeric_limits<int>::max(), std::numeric_limits<int>::max(), 1};
  EXPECT_THAT(ErrorOf(x), HasSubstr("nodes"));
}

TEST(PlannerTest, PlacementsThatAreWrongAreNamed) {
  const Instance good = Empty({2, 2, 1}, 1, 2, 8);
  Instance x = good;
  x.current.pop_back();
  EXPECT_THAT(ErrorOf(x), HasSubstr("placement: expected 2 layers, got 1"));
  x = good;
  x.current[1].push_back(0);
  EXPECT_THAT(ErrorOf(x), HasSubstr("layer 1: expected 8 experts, got 9"));
  x = good;
  x.current[1][5] = 4;
  EXPECT_THAT(ErrorOf(x), HasSubstr("layer 1, expert 5: rank 4 is not in 0..3"));
  x = good;
  x.current[0][5] = -1;
  EXPECT_THAT(ErrorOf(x), HasSubstr("layer 0, expert 5: rank -1"));
  x = good;
  x.current[1][7] = 0;
  EXPECT_THAT(ErrorOf(x), HasSubstr("layer 1: rank 0 is home to more than 2 experts"));
}

TEST(PlannerTest, OptionsThatAreNotNumbersOrNegativeAreNamed) {
  const Instance x = Empty({2, 2, 1}, 1, 1, 4);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    PlanOptions options;
    options.move_cost = bad;
    EXPECT_THAT(ErrorOf(x, options), HasSubstr("move_cost"));
    options = {};
    options.replica_cost = bad;
    EXPECT_THAT(ErrorOf(x, options), HasSubstr("replica_cost"));
  }
  PlanOptions options;
  options.bridges = -1;
  EXPECT_THAT(ErrorOf(x, options), HasSubstr("bridges: expected 0 or more, got -1"));
  options = {};
  options.max_moves = -1;
  EXPECT_THAT(ErrorOf(x, options), HasSubstr("max_moves: expected 0 or more, got -1"));
}

TEST(PlannerTest, TheLargestCostsForbidAllChanges) {
  PlanOptions options;
  options.move_cost = std::numeric_limits<double>::max();
  options.replica_cost = std::numeric_limits<double>::max();
  const Plan plan = PlanOf(Single({2, 2, 1}, {24, 4, 2, 2, 9, 9, 0, 1}), options);
  EXPECT_EQ(plan.summary.moves, 0);
  EXPECT_EQ(plan.summary.replicas, 0);
  EXPECT_EQ(plan.summary.bridges, 0);
}

TEST(PlannerTest, MoreBridgesThanRanksAreAsManyAsThereAreRanks) {
  PlanOptions options;
  options.bridges = std::numeric_limits<int>::max();
  const Plan plan = PlanOf(Single({2, 2, 1}, {400, 4, 2, 2, 0, 9, 0, 1}), options);
  EXPECT_LE(plan.summary.bridges, 4);
}

TEST(PlannerTest, EveryReplicaSlotMayBeAllowed) {
  EXPECT_DOUBLE_EQ(PlanOf(Single({1, 2, 65535}, {9, 1, 1, 1})).summary.imbalance_after, 1);
}

TEST(PlannerTest, TasksRunOnceEachInOrder) {
  std::vector<int> seen;
  InOrder(4, [&](int i) { seen.push_back(i); });
  EXPECT_THAT(seen, testing::ElementsAre(0, 1, 2, 3));
  InOrder(0, [](int) { FAIL(); });
}

}  // namespace
}  // namespace relibra

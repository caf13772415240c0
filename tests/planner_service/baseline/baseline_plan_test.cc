#include "planner_service/baseline/baseline_plan.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/baseline/eplb.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/split.h"
#include "planner_service/core/split_check.h"

namespace relibra {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTiny = 1e-9;

// All tokens of one (micro-batch, layer) come from rank 0.
Loads FromRank0(int ranks, const std::vector<std::vector<uint32_t>>& micro_batches) {
  const int experts = static_cast<int>(micro_batches[0].size());
  Loads loads = Loads::Create({.micro_batches = static_cast<int>(micro_batches.size()),
                               .layers = 1,
                               .sources = ranks,
                               .experts = experts})
                    .value();
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    std::copy(micro_batches[m].begin(), micro_batches[m].end(),
              loads.Mutable(static_cast<int>(m), 0).begin());
  }
  return loads;
}

absl::Status CheckWithSplits(const Loads& loads, const Placement& current, const Plan& plan) {
  absl::Status status = CheckPlan(loads, plan.topology, current, plan, /*may_be_worse=*/true);
  std::vector<Split> splits;
  status.Update(CheckAllSplits(loads, plan, [&](int l, int m) {
    SplitTokens(plan.topology, loads.At(m, l), plan.layers[l].home_rank, plan.layers[l].replicas[m],
                splits);
    return absl::MakeConstSpan(splits);
  }));
  return status;
}

TEST(PlanNoneTest, LeavesEverythingAsItIs) {
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(2, {{3, 1, 2, 2}, {8, 0, 0, 0}});
  const Placement current = {{1, 0, 1, 0}};
  const auto plan = PlanNone(loads, topology, current, InOrder);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layers[0].home_rank, current[0]);
  EXPECT_EQ(CheckWithSplits(loads, current, *plan), absl::OkStatus());
  // Ranks [3, 5] and [0, 8].
  EXPECT_THAT(plan->summary.imbalance_after, DoubleNear((1.25 + 2) / 2, kTiny));
}

// The case `extreme` of the recorded results, whose copies lie as
//   rank 0: 0 0 3, rank 1: 0 1 2, rank 2: 6 4 4, rank 3: 7 5 5.
// Expert 0's 1000 tokens are shared as 334 + 333 on rank 0 and 333 on rank 1.
TEST(PlanEplbTest, MergesCopiesOnOneRankAndSharesTokensEvenly) {
  const Topology topology{.nodes = 2, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(4, {{1000, 1, 1, 1, 1, 1, 1, 1}});
  const Placement current = LinearPlacement(topology, 1, 8);
  const auto eplb = PlanEplb(loads, topology, current, {.num_groups = 2}, InOrder);
  ASSERT_TRUE(eplb.ok()) << eplb.status();
  EXPECT_EQ(eplb->even_homes, absl::OkStatus());
  const LayerPlan& layer = eplb->plan.layers[0];
  EXPECT_THAT(layer.home_rank, ElementsAre(0, 1, 1, 0, 2, 3, 2, 3));
  EXPECT_THAT(layer.replicas[0],
              ElementsAre(Replica{.expert = 0, .rank = 1, .slot = 0, .tokens = 333}));
  EXPECT_EQ(CheckWithSplits(loads, current, eplb->plan), absl::OkStatus());
  // Ranks [667 + 1, 333 + 2, 2, 2] of 1007.
  EXPECT_THAT(eplb->plan.summary.imbalance_after, DoubleNear(668 * 4 / 1007.0, kTiny));
}

// 7 / 4 copies, 2 and 1: rank 0 gets experts 1 and 0, ranks 1 and 2 two copies of expert 2 each, so
// one of experts 0 and 1 has no home to itself.
TEST(PlanEplbTest, SaysWhereNoChoiceOfHomesIsEven) {
  const Topology topology{.nodes = 1, .gpus_per_node = 3, .replica_slots = 1};
  const Loads loads = FromRank0(3, {{1, 2, 7}});
  const auto eplb = PlanEplb(loads, topology, LinearPlacement(topology, 1, 3), {}, InOrder);
  ASSERT_TRUE(eplb.ok()) << eplb.status();
  EXPECT_EQ(eplb->even_homes.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(eplb->even_homes.message()), HasSubstr("layer 0, expert 1"));
  // It can be evaluated all the same: 7 is shared as 4 + 3 (two copies each, one token over).
  EXPECT_THAT(eplb->plan.summary.imbalance_after, DoubleNear(4 * 3 / 10.0, kTiny));
}

TEST(PlanEplbTest, LeavesALayerWithoutTokensAsItIs) {
  const Topology topology{.nodes = 2, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(4, {{0, 0, 0, 0}});
  const Placement current = {{3, 2, 1, 0}};
  const auto eplb = PlanEplb(loads, topology, current, {}, InOrder);
  ASSERT_TRUE(eplb.ok()) << eplb.status();
  EXPECT_EQ(eplb->plan.layers[0].home_rank, current[0]);
  EXPECT_EQ(eplb->plan.summary.replicas, 0);
}

// Rank loads of the plan against those of EPLB's own placement: whole tokens make a difference of
// less than one a copy.
TEST(PlanEplbTest, CarriesEplbsLoadsAndKeepsTheRulesOfPlans) {
  std::mt19937 random(17);
  int uneven = 0;
  for (int round = 0; round < 200; ++round) {
    const Topology topology{.nodes = 1 + static_cast<int>(random() % 3),
                            .gpus_per_node = 1 + static_cast<int>(random() % 4),
                            .replica_slots = static_cast<int>(random() % 3)};
    const int ranks = topology.num_ranks();
    const int experts = ranks * (2 + static_cast<int>(random() % 3));
    std::vector<std::vector<uint32_t>> by_expert(2, std::vector<uint32_t>(experts));
    for (auto& micro_batch : by_expert) {
      for (uint32_t& load : micro_batch) load = 1 + random() % 100;
    }
    const Loads loads = FromRank0(ranks, by_expert);
    const Placement current = LinearPlacement(topology, 1, experts);
    const auto eplb = PlanEplb(loads, topology, current, {}, InOrder);
    ASSERT_TRUE(eplb.ok()) << eplb.status();
    if (!eplb->even_homes.ok()) {
      ++uneven;
      continue;
    }
    EXPECT_EQ(CheckWithSplits(loads, current, eplb->plan), absl::OkStatus());

    std::vector<float> weights(experts);
    for (int e = 0; e < experts; ++e)
      weights[e] = static_cast<float>(by_expert[0][e] + by_expert[1][e]);
    const int copies = experts + ranks * topology.replica_slots;
    const auto layer = RunEplb(weights, {copies, experts, topology.nodes, ranks});
    ASSERT_TRUE(layer.ok()) << layer.status();
    double sum_of_ratios = 0;
    double total_copies_over_mean = 0;
    for (const auto& micro_batch : by_expert) {
      std::vector<double> rank_load(ranks);
      double total = 0;
      for (int p = 0; p < copies; ++p) {
        const int e = layer->physical_to_logical[p];
        rank_load[p / (copies / ranks)] +=
            static_cast<double>(micro_batch[e]) / layer->logical_count[e];
        total += static_cast<double>(micro_batch[e]) / layer->logical_count[e];
      }
      sum_of_ratios += *std::max_element(rank_load.begin(), rank_load.end()) * ranks / total;
      total_copies_over_mean += copies / total;
    }
    EXPECT_THAT(eplb->plan.summary.imbalance_after,
                DoubleNear(sum_of_ratios / 2, total_copies_over_mean / 2));
  }
  EXPECT_LT(uneven, 20);
}

TEST(PlanEplbTest, RefusesGroupsThatDoNotDivide) {
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(2, {{1, 2, 3, 4}});
  const auto eplb =
      PlanEplb(loads, topology, LinearPlacement(topology, 1, 4), {.num_groups = 3}, InOrder);
  EXPECT_EQ(eplb.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(eplb.status().message()), HasSubstr("num_groups, 3"));
}

TEST(BaselinePlanTest, RefuseInputThatDoesNotFit) {
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(2, {{1, 2, 3, 4}});
  const auto message = [&](const Placement& current) {
    return std::string(PlanNone(loads, topology, current, InOrder).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("placement: expected 1 layers, got 0"));
  EXPECT_THAT(message({{0, 1}}), HasSubstr("layer 0: expected 4 experts, got 2"));
  EXPECT_THAT(message({{0, 0, 1, 2}}), HasSubstr("layer 0, expert 3: rank 2"));
  EXPECT_THAT(message({{0, 0, 0, 1}}), HasSubstr("rank 0 is home to more than 2"));
  EXPECT_THAT(std::string(PlanNone(FromRank0(3, {{1, 2, 3, 4}}), topology, {{0, 0, 1, 1}}, InOrder)
                              .status()
                              .message()),
              HasSubstr("loads: expected 2 source ranks, got 3"));
}

TEST(IdealResultTest, CarriesTheMeanEverywhereAndCopiesNothing) {
  const Topology topology{.nodes = 2, .gpus_per_node = 2, .replica_slots = 1};
  const Loads loads = FromRank0(4, {{10, 4, 2, 1}});
  const auto plan = PlanNone(loads, topology, LinearPlacement(topology, 1, 4), InOrder);
  const PolicyResult none = Evaluate("none", loads, *plan, {}, InOrder);
  const PolicyResult ideal = IdealResult(topology, none);
  EXPECT_EQ(ideal.policy, "ideal");
  EXPECT_THAT(ideal.imbalance_mean, DoubleNear(1, kTiny));
  EXPECT_THAT(ideal.imbalance_max, DoubleNear(1, kTiny));
  EXPECT_THAT(ideal.node_imbalance_mean, DoubleNear(1, kTiny));
  EXPECT_EQ(ideal.pairs, 17);
  EXPECT_EQ(ideal.copies, 0);
  // Rank 0 sends 2 + 1 across; the mean of four ranks.
  EXPECT_THAT(ideal.work[0].most_cross_node_rows, DoubleNear(0.75, kTiny));
}

}  // namespace
}  // namespace relibra

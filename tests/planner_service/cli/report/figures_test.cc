#include "planner_service/cli/report/figures.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/evaluate.h"
#include "planner_service/core/planner.h"

namespace relibra::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTiny = 1e-9;

// 2 nodes x 2 ranks, 4 experts, one layer, two micro-batches with 20 4 4 4 and 4 4 4 4 pairs for
// the experts. Experts 0 and 1 change places in node 0, so that expert e is at home on rank e.
// Expert 0 has a replica on rank 1 that serves 10 and then 2, expert 3 a bridge on rank 0 that
// serves 2 in both.
struct Example {
  Loads loads = Loads::FromCounts({.micro_batches = 2, .layers = 1, .sources = 4, .experts = 4},
                                  {8, 0, 0, 0, 4, 4, 0, 0, 8, 0, 0, 0, 0, 0, 4, 4,  //
                                   0, 0, 0, 4, 0, 0, 4, 0, 0, 4, 0, 0, 4, 0, 0, 0})
                    .value();
  Placement before = {{1, 0, 2, 3}};
  Plan plan;

  Example() {
    plan.topology = {.nodes = 2, .gpus_per_node = 2, .replica_slots = 2};
    plan.layers.resize(1);
    plan.layers[0].home_rank = {0, 1, 2, 3};
    plan.layers[0].moves = {{.expert = 0, .from_rank = 1, .to_rank = 0},
                            {.expert = 1, .from_rank = 0, .to_rank = 1}};
    plan.layers[0].replicas = {
        {{.expert = 0, .rank = 1, .slot = 0, .tokens = 10},
         {.expert = 3, .rank = 0, .slot = 0, .tokens = 2, .cross_node = true}},
        {{.expert = 0, .rank = 1, .slot = 0, .tokens = 2},
         {.expert = 3, .rank = 0, .slot = 0, .tokens = 2, .cross_node = true}}};
  }
};

TEST(ReportFiguresTest, GivesTheLoadOfEveryRankBeforeAndAfter) {
  const Example x;
  const ReportFigures figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.loads_before, ElementsAre(4, 20, 4, 4, 4, 4, 4, 4));
  // Rank 0: 20 - 10 of expert 0 and 2 of expert 3; rank 1: 10 and its own 4; rank 3: 4 - 2.
  EXPECT_THAT(figures.loads_after, ElementsAre(12, 14, 4, 2, 4, 6, 4, 2));
}

TEST(ReportFiguresTest, GivesTheLoadAndTheCopiesOfEveryExpert) {
  const Example x;
  const ReportFigures figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.expert_loads, ElementsAre(24, 8, 8, 8));
  // The mean expert has 8 and then 4: expert 0 reaches 20 / 8, the others 4 / 4.
  EXPECT_THAT(figures.expert_peaks, ElementsAre(2.5, 1, 1, 1));
  EXPECT_THAT(figures.expert_copied, ElementsAre(2, 0, 0, 2));
}

TEST(ReportFiguresTest, TellsCopiesThatAreKeptFromThoseThatAreFetched) {
  Example x;
  ReportFigures figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.copies_fetched, ElementsAre(1, 0));
  EXPECT_THAT(figures.copies_kept, ElementsAre(0, 1));
  x.plan.layers[0].replicas[1][0] = {.expert = 1, .rank = 0, .slot = 1, .tokens = 1};
  figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.copies_fetched, ElementsAre(1, 1));
  EXPECT_THAT(figures.copies_kept, ElementsAre(0, 0));
}

TEST(ReportFiguresTest, CountsMovesInsideAndAcrossNodesAndBridges) {
  Example x;
  ReportFigures figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.moves_inside, ElementsAre(2));
  EXPECT_THAT(figures.moves_across, ElementsAre(0));
  EXPECT_THAT(figures.bridges, ElementsAre(1));
  x.before = {{0, 2, 1, 3}};
  x.plan.layers[0].moves = {{.expert = 1, .from_rank = 2, .to_rank = 1},
                            {.expert = 2, .from_rank = 1, .to_rank = 2}};
  figures = FiguresOf(x.loads, x.before, x.plan).value();
  EXPECT_THAT(figures.moves_inside, ElementsAre(0));
  EXPECT_THAT(figures.moves_across, ElementsAre(2));
}

TEST(ReportFiguresTest, SplitsTheRestOfTheImbalanceIntoItsCauses) {
  const Example x;
  const ReportFigures figures = FiguresOf(x.loads, x.before, x.plan).value();
  ASSERT_EQ(figures.limits.size(), 2u);
  // Ranks 12 14 4 2, mean 8; nodes 26 6, mean 16; expert 0 has 20 in node 0:
  // 20/16 = 1 + 1/4, 26/16 = that + 3/8, 14/8 = that + 1/8.
  EXPECT_THAT(figures.limits[0].hottest_expert, DoubleNear(0.25, kTiny));
  EXPECT_THAT(figures.limits[0].node_bound, DoubleNear(0.375, kTiny));
  EXPECT_THAT(figures.limits[0].slots, DoubleNear(0.125, kTiny));
  // Ranks 4 6 4 2, mean 4; nodes 10 6, mean 8; no expert has more than 4.
  EXPECT_THAT(figures.limits[1].hottest_expert, DoubleNear(0, kTiny));
  EXPECT_THAT(figures.limits[1].node_bound, DoubleNear(0.25, kTiny));
  EXPECT_THAT(figures.limits[1].slots, DoubleNear(0.25, kTiny));
}

TEST(ReportFiguresTest, CountsOnlyWhatBridgesLeaveOfTheHottestExpert) {
  // 32 pairs, all of expert 0 on rank 0; bridges on ranks 2 and 3 serve 8 and 6 of them: node 0
  // computes 18, node 1 14, the mean of nodes is 16, of ranks 8.
  const Topology topology{.nodes = 2, .gpus_per_node = 2, .replica_slots = 1};
  const std::vector<uint32_t> totals = {32, 0, 0, 0};
  const std::vector<int32_t> homes = {0, 1, 2, 3};
  std::vector<Replica> replicas = {{.expert = 0, .rank = 2, .tokens = 8, .cross_node = true},
                                   {.expert = 0, .rank = 3, .tokens = 6, .cross_node = true}};
  Limits limits = LimitsOf(topology, totals, homes, replicas);
  EXPECT_THAT(limits.hottest_expert, DoubleNear(0.125, kTiny));
  EXPECT_THAT(limits.node_bound, DoubleNear(0, kTiny));
  EXPECT_THAT(limits.slots, DoubleNear(1.125, kTiny));
  // Now the bridges serve 10 each: 20 of the expert in node 1.
  replicas[0].tokens = replicas[1].tokens = 10;
  limits = LimitsOf(topology, totals, homes, replicas);
  EXPECT_THAT(limits.hottest_expert, DoubleNear(0.25, kTiny));
}

TEST(ReportFiguresTest, FindsNoLimitWithoutTokens) {
  const std::vector<uint32_t> totals = {0, 0};
  const std::vector<int32_t> homes = {0, 1};
  const Limits limits =
      LimitsOf({.nodes = 1, .gpus_per_node = 2, .replica_slots = 1}, totals, homes, {});
  EXPECT_EQ(limits.hottest_expert, 0);
  EXPECT_EQ(limits.node_bound, 0);
  EXPECT_EQ(limits.slots, 0);
}

TEST(ReportFiguresTest, RefusesRankLoadsAbove32Bits) {
  // Each expert fits, but rank 0 has both.
  const Loads loads =
      Loads::FromCounts({.micro_batches = 1, .layers = 1, .sources = 1, .experts = 2},
                        {3'000'000'000, 2'000'000'000})
          .value();
  Plan plan;
  plan.topology = {.nodes = 1, .gpus_per_node = 1, .replica_slots = 0};
  plan.layers = {{.home_rank = {0, 0}, .moves = {}, .replicas = {{}}}};
  const auto figures = FiguresOf(loads, {{0, 0}}, plan);
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(figures.status().message(), HasSubstr("rank 0 computes 5000000000"));
}

// Homes changed at random, and replicas and bridges drawn with a fifth of all (expert, rank), each
// serving a random part of what the others leave of its expert.
Plan RandomPlan(const Topology& topology, const Loads& loads, const Placement& before,
                std::mt19937& random) {
  const LoadShape& shape = loads.shape();
  Plan plan;
  plan.topology = topology;
  for (int l = 0; l < shape.layers; ++l) {
    LayerPlan layer{.home_rank = before[l], .moves = {}, .replicas = {}};
    std::shuffle(layer.home_rank.begin(), layer.home_rank.end(), random);
    std::vector<std::vector<bool>> bridges(shape.experts);
    for (int e = 0; e < shape.experts; ++e) {
      if (layer.home_rank[e] != before[l][e]) {
        layer.moves.push_back(
            {.expert = e, .from_rank = before[l][e], .to_rank = layer.home_rank[e]});
      }
      for (int r = 0; r < topology.num_ranks(); ++r) bridges[e].push_back(random() % 5 == 0);
    }
    for (int m = 0; m < shape.micro_batches; ++m) {
      std::vector<Replica>& replicas = layer.replicas.emplace_back();
      for (int e = 0; e < shape.experts; ++e) {
        uint32_t left = 0;
        for (int s = 0; s < shape.sources; ++s) left += loads.At(m, l)[s * shape.experts + e];
        for (int r = 0; r < topology.num_ranks(); ++r) {
          const bool across = topology.NodeOf(r) != topology.NodeOf(layer.home_rank[e]);
          if (r == layer.home_rank[e] || !(across ? bridges[e][r] : random() % 5 == 0)) continue;
          const uint32_t tokens = random() % (left + 1);
          left -= tokens;
          replicas.push_back({.expert = e, .rank = r, .tokens = tokens, .cross_node = across});
        }
      }
    }
    plan.layers.push_back(std::move(layer));
  }
  return plan;
}

// Against the evaluation, which counts flows of source ranks instead: over random plans the loads,
// copies and moves agree, and the limits sum to the imbalance.
TEST(ReportFiguresTest, AgreesWithTheEvaluationOfRandomPlans) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const Topology topology{
        .nodes = 1 + round % 3, .gpus_per_node = 1 + round % 4, .replica_slots = 2};
    const int ranks = topology.num_ranks();
    const LoadShape shape{.micro_batches = 1 + round % 5,
                          .layers = 2,
                          .sources = ranks,
                          .experts = ranks * (1 + round % 2)};
    Loads loads = Loads::Create(shape).value();
    std::lognormal_distribution<double> tokens(round % 4, 1.5);
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (int l = 0; l < shape.layers; ++l) {
        for (uint32_t& count : loads.Mutable(m, l)) count = static_cast<uint32_t>(tokens(random));
      }
    }
    const Placement before = LinearPlacement(topology, shape.layers, shape.experts);
    const Plan plan = RandomPlan(topology, loads, before, random);
    const PolicyResult result = Evaluate("random", loads, plan, {}, InOrder);
    const ReportFigures figures = FiguresOf(loads, before, plan).value();
    for (size_t cell = 0; cell < result.work.size(); ++cell) {
      const LayerWork& work = result.work[cell];
      const auto* first = figures.loads_after.data() + cell * ranks;
      ASSERT_EQ(*std::max_element(first, first + ranks), work.most_rank_pairs);
      ASSERT_EQ(std::accumulate(first, first + ranks, int64_t{0}), work.pairs);
      ASSERT_EQ(figures.copies_fetched[cell], work.fetched);
      ASSERT_EQ(figures.copies_kept[cell], work.replicas - work.fetched);
      const Limits& limits = figures.limits[cell];
      const double imbalance =
          work.pairs == 0 ? 1 : work.most_rank_pairs * ranks / static_cast<double>(work.pairs);
      ASSERT_THAT(limits.hottest_expert + limits.node_bound + limits.slots,
                  DoubleNear(imbalance - 1, kTiny));
    }
    const auto sum = [](const std::vector<int32_t>& counts) {
      return std::accumulate(counts.begin(), counts.end(), int64_t{0});
    };
    ASSERT_EQ(sum(figures.moves_across), result.step.cross_node_moves);
    ASSERT_EQ(sum(figures.moves_inside), result.step.moves - result.step.cross_node_moves);
    ASSERT_EQ(sum(figures.bridges), result.step.bridges);
  }
}

}  // namespace
}  // namespace relibra::cli

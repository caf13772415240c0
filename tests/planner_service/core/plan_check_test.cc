#include "planner_service/core/plan_check.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/split_check.h"

namespace relibra {
namespace {

using ::testing::HasSubstr;

// 2 nodes x 2 ranks, 4 experts, 2 layers, 2 micro-batches, R = 2. Layer 0 swaps experts 1 and 2
// between the nodes (ranks 1 and 2), splits expert 0 over its node in both micro-batches and
// carries a bridge of expert 3 (home rank 3) on rank 0. Layer 1 stays as it is.
//
// Layer 0, loads by expert [40, 10, 20, 30] in micro-batch 0 and [40, 20, 10, 30] in micro-batch 1,
// each spread as quarters over the source ranks. Homes after: e0 r0, e1 r2, e2 r1, e3 r3.
//   mb 0: before ranks [40,10,20,30] = 1.6; after: e0 gives 5 to r1, e3 gives 5 to r0:
//         r0 40, r1 25, r2 10, r3 25 -> 40/25 = 1.6; nodes [60, 40] -> 1.2
//   mb 1: before [40,20,10,30] = 1.6; e0 gives 15 to r1, e3 gives 0 to r0: r0 25, r1 25, r2 20,
//         r3 30 -> 1.2; nodes [50, 50] -> 1
// Layer 1: all experts 10 in both micro-batches: 1.
struct Example {
  Loads loads;
  Topology topology{.nodes = 2, .gpus_per_node = 2, .replica_slots = 2};
  Placement current;
  Plan plan;
  // [layer][micro-batch]
  std::vector<std::vector<std::vector<Split>>> splits;
};

Loads ExampleLoads() {
  Loads loads =
      Loads::Create({.micro_batches = 2, .layers = 2, .sources = 4, .experts = 4}).value();
  const uint32_t by_expert[2][2][4] = {{{40, 10, 20, 30}, {10, 10, 10, 10}},
                                       {{40, 20, 10, 30}, {10, 10, 10, 10}}};
  for (int m = 0; m < 2; ++m) {
    for (int l = 0; l < 2; ++l) {
      for (int e = 0; e < 4; ++e) {
        uint32_t left = by_expert[m][l][e];
        for (int s = 0; s < 4; ++s) {
          const uint32_t part = left / (4 - s);
          loads.Mutable(m, l)[s * 4 + e] = part;
          left -= part;
        }
      }
    }
  }
  return loads;
}

Example MakeExample() {
  Example x{.loads = ExampleLoads(), .current = {}, .plan = {}, .splits = {}};
  x.current = LinearPlacement(x.topology, 2, 4);
  x.plan.topology = x.topology;
  x.plan.digest = "0123456789abcdef";
  x.plan.layers.resize(2);
  x.plan.layers[0].home_rank = {0, 2, 1, 3};
  x.plan.layers[0].moves = {{.expert = 1, .from_rank = 1, .to_rank = 2},
                            {.expert = 2, .from_rank = 2, .to_rank = 1}};
  x.plan.layers[0].replicas = {
      {{.expert = 0, .rank = 1, .slot = 0, .tokens = 5},
       {.expert = 3, .rank = 0, .slot = 1, .tokens = 5, .cross_node = true}},
      {{.expert = 0, .rank = 1, .slot = 0, .tokens = 15},
       {.expert = 3, .rank = 0, .slot = 1, .tokens = 0, .cross_node = true}}};
  x.plan.layers[1].home_rank = {0, 1, 2, 3};
  x.plan.layers[1].replicas.resize(2);
  x.plan.summary = {.imbalance_before = (1.6 + 1.6 + 1 + 1) / 4,
                    .imbalance_after = (1.6 + 1.2 + 1 + 1) / 4,
                    .lower_bound = 1,
                    .node_imbalance_after = (1.2 + 1 + 1 + 1) / 4,
                    .moves = 2,
                    .cross_node_moves = 2,
                    .replicas = 2,
                    .bridges = 1,
                    .replicas_kept = 1,
                    .tokens = 100 + 100 + 40 + 40};
  x.splits.assign(2, std::vector<std::vector<Split>>(2));
  // Source loads of e0: 10 each; of e3: 30/4 -> [7, 7, 8, 8].
  x.splits[0][0] = {{0, 0, 0, 10}, {0, 1, 0, 5}, {0, 1, 1, 5}, {0, 2, 0, 10}, {0, 3, 0, 10},
                    {3, 0, 0, 5},  {3, 0, 3, 2}, {3, 1, 3, 7}, {3, 2, 3, 8},  {3, 3, 3, 8}};
  x.splits[0][1] = {{0, 0, 0, 10}, {0, 1, 1, 10}, {0, 2, 0, 5}, {0, 2, 1, 5}, {0, 3, 0, 10},
                    {3, 0, 3, 7},  {3, 1, 3, 7},  {3, 2, 3, 8}, {3, 3, 3, 8}};
  return x;
}

absl::Status Check(const Example& x) { return CheckPlan(x.loads, x.topology, x.current, x.plan); }

absl::Status CheckSplitsOf(const Example& x) {
  return CheckAllSplits(x.loads, x.plan,
                        [&](int l, int m) { return absl::MakeConstSpan(x.splits[l][m]); });
}

TEST(PlanCheckTest, AcceptsAPlanThatKeepsEveryRule) {
  const Example x = MakeExample();
  EXPECT_EQ(Check(x), absl::OkStatus());
  EXPECT_EQ(CheckSplitsOf(x), absl::OkStatus());
}

// One rule broken, and what the message must name.
struct Mutation {
  std::string name;
  std::function<void(Example&)> breaks;
  std::string message;
};

class BrokenPlanTest : public ::testing::TestWithParam<Mutation> {};

TEST_P(BrokenPlanTest, IsCaughtAndNamed) {
  Example x = MakeExample();
  GetParam().breaks(x);
  const absl::Status status = Check(x);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

Replica& First(Example& x) { return x.plan.layers[0].replicas[0][0]; }
Replica& Bridge(Example& x, int m) { return x.plan.layers[0].replicas[m][1]; }

INSTANTIATE_TEST_SUITE_P(
    OneRuleEach, BrokenPlanTest,
    ::testing::Values(
        Mutation{"OtherTopology", [](Example& x) { x.plan.topology.replica_slots = 3; },
                 "topology"},
        Mutation{"LayerMissing", [](Example& x) { x.plan.layers.pop_back(); },
                 "layers: expected 2, got 1"},
        Mutation{"DigestNotHex", [](Example& x) { x.plan.digest = "xyz"; }, "digest"},
        Mutation{"DigestEmpty", [](Example& x) { x.plan.digest.clear(); }, "digest"},
        Mutation{"HomesTooFew", [](Example& x) { x.plan.layers[1].home_rank.pop_back(); },
                 "layer 1: home_rank: expected 4 experts, got 3"},
        Mutation{"HomeOutOfRange", [](Example& x) { x.plan.layers[1].home_rank[2] = 4; },
                 "layer 1, expert 2: home rank 4"},
        Mutation{"HomesUneven", [](Example& x) { x.plan.layers[1].home_rank[2] = 1; },
                 "layer 1, rank 1: home to 2 experts, expected 1"},
        Mutation{"MoveMissing", [](Example& x) { x.plan.layers[0].moves.pop_back(); },
                 "layer 0, expert 2: its home changes"},
        Mutation{"MoveInvented",
                 [](Example& x) {
                   x.plan.layers[1].moves = {{3, 3, 3}};
                 },
                 "layer 1, expert 3"},
        Mutation{"MoveFromElsewhere", [](Example& x) { x.plan.layers[0].moves[0].from_rank = 3; },
                 "layer 0, expert 1"},
        Mutation{"MoveToElsewhere", [](Example& x) { x.plan.layers[0].moves[1].to_rank = 3; },
                 "layer 0, expert 2"},
        Mutation{
            "MovesNotAscending",
            [](Example& x) { std::swap(x.plan.layers[0].moves[0], x.plan.layers[0].moves[1]); },
            "layer 0, expert 1"},
        Mutation{"MoveRepeated",
                 [](Example& x) {
                   x.plan.layers[0].moves.push_back({2, 2, 1});
                 },
                 "moves[2] names expert 2"},
        Mutation{"MicroBatchMissing", [](Example& x) { x.plan.layers[1].replicas.pop_back(); },
                 "layer 1: replicas: expected 2 micro-batches, got 1"},
        Mutation{"ReplicaOfNoExpert", [](Example& x) { First(x).expert = -1; },
                 "layer 0, micro-batch 0, expert -1"},
        Mutation{"ReplicaOnNoRank", [](Example& x) { First(x).rank = 4; },
                 "layer 0, micro-batch 0, expert 0, rank 4"},
        Mutation{"ReplicaOnItsHome", [](Example& x) { First(x).rank = 0; },
                 "layer 0, micro-batch 0, expert 0, rank 0: a replica on the expert's home"},
        Mutation{"ReplicaLeavesItsNode", [](Example& x) { First(x).rank = 2; },
                 "layer 0, micro-batch 0, expert 0, rank 2: outside its home's node"},
        Mutation{"BridgeInsideItsNode", [](Example& x) { First(x).cross_node = true; },
                 "expert 0, rank 1: marked cross_node"},
        Mutation{"SlotOutOfRange", [](Example& x) { First(x).slot = 2; },
                 "expert 0, rank 1: slot 2 is not one of the 2"},
        Mutation{"SlotNegative", [](Example& x) { First(x).slot = -1; }, "slot -1"},
        Mutation{"SlotUsedTwice",
                 [](Example& x) {
                   // Expert 2 lives on rank 1; a replica on rank 0 in the bridge's slot.
                   auto& replicas = x.plan.layers[0].replicas[1];
                   replicas.insert(replicas.begin() + 1, {.expert = 2, .rank = 0, .slot = 1});
                 },
                 "layer 0, micro-batch 1, expert 3, rank 0: slot 1 is used twice"},
        Mutation{"ExpertTwiceOnARank",
                 [](Example& x) {
                   auto& replicas = x.plan.layers[0].replicas[0];
                   replicas.insert(replicas.begin() + 1, {.expert = 0, .rank = 1, .slot = 1});
                 },
                 "expert 0, rank 1: the rank holds the expert twice"},
        Mutation{"ReplicasNotAscending",
                 [](Example& x) {
                   auto& replicas = x.plan.layers[0].replicas[0];
                   std::swap(replicas[0], replicas[1]);
                 },
                 "not ascending"},
        Mutation{"ReplicaServesTooMuch", [](Example& x) { First(x).tokens = 41; },
                 "layer 0, micro-batch 0, expert 0, rank 1: replicas serve 41 tokens of a load"},
        Mutation{"BridgeGoesAway", [](Example& x) { x.plan.layers[0].replicas[1].pop_back(); },
                 "layer 0, micro-batch 1, expert 3, rank 0: the bridge in slot 1 of micro-batch 0"},
        Mutation{"BridgeComesLate", [](Example& x) { x.plan.layers[0].replicas[0].pop_back(); },
                 "layer 0, micro-batch 1, expert 3, rank 0: the bridge in slot 1 is not in"},
        Mutation{"BridgeChangesSlot", [](Example& x) { Bridge(x, 1).slot = 0; },
                 "layer 0, micro-batch 1, expert 3, rank 0"},
        Mutation{"BridgeChangesRank", [](Example& x) { Bridge(x, 1).rank = 1; },
                 "layer 0, micro-batch 1, expert 3"},
        Mutation{"SummaryBefore", [](Example& x) { x.plan.summary.imbalance_before += 1e-6; },
                 "imbalance_before"},
        Mutation{"SummaryAfter", [](Example& x) { x.plan.summary.imbalance_after = 1; },
                 "imbalance_after"},
        Mutation{"SummaryTokensOfAReplica", [](Example& x) { First(x).tokens = 6; },
                 "imbalance_after"},
        Mutation{"SummaryNodes", [](Example& x) { x.plan.summary.node_imbalance_after = 1; },
                 "node_imbalance_after"},
        Mutation{"SummaryMoves", [](Example& x) { x.plan.summary.moves = 1; }, "moves says 1"},
        Mutation{"SummaryCrossNodeMoves", [](Example& x) { x.plan.summary.cross_node_moves = 0; },
                 "cross_node_moves says 0"},
        Mutation{"SummaryReplicas", [](Example& x) { x.plan.summary.replicas = 3; },
                 "replicas says 3"},
        Mutation{"SummaryBridges", [](Example& x) { x.plan.summary.bridges = 2; },
                 "bridges says 2"},
        Mutation{"SummaryKept", [](Example& x) { x.plan.summary.replicas_kept = 0; },
                 "replicas_kept says 0"},
        Mutation{"SummaryTokens", [](Example& x) { x.plan.summary.tokens = 279; },
                 "tokens says 279"},
        Mutation{"BoundAbovePlan", [](Example& x) { x.plan.summary.lower_bound = 1.25; },
                 "lower_bound"},
        Mutation{"BoundBelowOne", [](Example& x) { x.plan.summary.lower_bound = 0.5; },
                 "lower_bound"},
        Mutation{"BoundNotANumber", [](Example& x) { x.plan.summary.lower_bound = std::nan(""); },
                 "lower_bound"}),
    [](const auto& info) { return info.param.name; });

// Without replicas, with expert 3 sent to the node that holds expert 0: rank 0 keeps its 40 of 100
// tokens, but with E = 8 on 4 ranks the pair (40, 30) on one rank is worse than before.
TEST(PlanCheckTest, RefusesAPlanThatIsWorseThanDoingNothingUnlessTold) {
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 0};
  const Loads loads =
      Loads::FromCounts({.micro_batches = 1, .layers = 1, .sources = 2, .experts = 4},
                        {4, 1, 3, 2, 0, 0, 0, 0})
          .value();
  Plan plan;
  plan.topology = topology;
  plan.digest = "ab";
  plan.layers.resize(1);
  plan.layers[0].home_rank = {0, 1, 0, 1};  // ranks [5, 5] become [7, 3]
  plan.layers[0].moves = {{1, 0, 1}, {2, 1, 0}};
  plan.layers[0].replicas.resize(1);
  plan.summary = {.imbalance_after = 1.4, .moves = 2, .tokens = 10};
  const Placement current = {{0, 0, 1, 1}};
  EXPECT_THAT(std::string(CheckPlan(loads, topology, current, plan).message()),
              HasSubstr("worse than doing nothing"));
  EXPECT_EQ(CheckPlan(loads, topology, current, plan, /*may_be_worse=*/true), absl::OkStatus());
}

TEST(PlanCheckTest, BlamesTheCallerForArgumentsThatDoNotFit) {
  Example x = MakeExample();
  x.current.pop_back();
  EXPECT_EQ(Check(x).code(), absl::StatusCode::kInvalidArgument);
  x = MakeExample();
  x.current[1] = {0, 0, 1, 1};
  EXPECT_EQ(Check(x).code(), absl::StatusCode::kInvalidArgument);
  x = MakeExample();
  x.topology.gpus_per_node = 1;
  EXPECT_EQ(Check(x).code(), absl::StatusCode::kInvalidArgument);
}

class BrokenSplitsTest : public ::testing::TestWithParam<Mutation> {};

TEST_P(BrokenSplitsTest, AreCaughtAndNamed) {
  Example x = MakeExample();
  GetParam().breaks(x);
  const absl::Status status = CheckSplitsOf(x);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    OneRuleEach, BrokenSplitsTest,
    ::testing::Values(
        Mutation{"OneTokenTooFew", [](Example& x) { --x.splits[0][0][0].tokens; },
                 "layer 0, micro-batch 0: splits violate their rules: expert 0, source rank 0"},
        Mutation{"OneTokenTooMany", [](Example& x) { ++x.splits[0][1][8].tokens; },
                 "micro-batch 1: splits violate their rules: expert 3, source rank 3"},
        Mutation{"RowMissing", [](Example& x) { x.splits[0][0].erase(x.splits[0][0].begin() + 3); },
                 "expert 0, source rank 2: splits place 0 tokens of a load of 10"},
        Mutation{"AllRowsMissing", [](Example& x) { x.splits[0][1].clear(); },
                 "expert 0, source rank 0"},
        Mutation{"QuotaShifted",
                 [](Example& x) {
                   x.splits[0][0][1].tokens = 6;
                   x.splits[0][0][2].tokens = 4;
                 },
                 "expert 0, rank 0: splits miss its quota by -1"},
        Mutation{"ZeroRow",
                 [](Example& x) {
                   x.splits[0][1].insert(x.splits[0][1].begin() + 1, {0, 0, 1, 0});
                 },
                 "expert 0, source rank 0, rank 1: a split of 0 tokens"},
        Mutation{"NoInstanceThere", [](Example& x) { x.splits[0][0][0].rank = 2; },
                 "expert 0, source rank 0, rank 2: no instance"},
        Mutation{"RanksNotAscending",
                 [](Example& x) { std::swap(x.splits[0][0][1], x.splits[0][0][2]); },
                 "expert 0, source rank 1, rank 0: splits are not ascending"},
        Mutation{"RowRepeated",
                 [](Example& x) {
                   x.splits[0][0][0].tokens = 5;
                   x.splits[0][0].insert(x.splits[0][0].begin(), x.splits[0][0][0]);
                 },
                 "expert 0, source rank 0, rank 0: splits are not ascending"},
        Mutation{"SourcesNotAscending",
                 [](Example& x) { std::swap(x.splits[0][0][3], x.splits[0][0][4]); },
                 "expert 0, source rank 2"},
        Mutation{"ExpertWithoutReplicas",
                 [](Example& x) {
                   x.splits[1][0] = {{1, 0, 1, 2}};
                 },
                 "layer 1, micro-batch 0: splits violate their rules: expert 1, source rank 0"},
        Mutation{"SourceOutOfRange",
                 [](Example& x) {
                   x.splits[0][0].push_back({3, 4, 3, 1});
                 },
                 "expert 3, source rank 4"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace relibra

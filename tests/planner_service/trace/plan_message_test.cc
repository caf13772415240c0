#include "planner_service/trace/plan_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace relibra {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// 2 nodes x 2 GPUs, 4 experts, two layers, two micro-batches; a move, a replica, a bridge.
Plan SmallPlan() {
  Plan plan;
  plan.topology = {.nodes = 2, .gpus_per_node = 2, .replica_slots = 2};
  const Replica bridge{.expert = 0, .rank = 2, .slot = 1, .tokens = 3, .cross_node = true};
  const Replica replica{.expert = 0, .rank = 1, .slot = 0, .tokens = 7};
  plan.layers.push_back({.home_rank = {0, 1, 2, 3}, .moves = {}, .replicas = {{}, {}}});
  plan.layers.push_back({.home_rank = {0, 2, 1, 3},
                         .moves = {{.expert = 1, .from_rank = 1, .to_rank = 2},
                                   {.expert = 2, .from_rank = 2, .to_rank = 1}},
                         .replicas = {{replica, bridge}, {bridge}}});
  plan.digest = "abc";
  plan.summary = {.imbalance_before = 2,
                  .imbalance_after = 1.25,
                  .lower_bound = 1.125,
                  .node_imbalance_after = 1.0625,
                  .plan_seconds = 0.5,
                  .moves = 2,
                  .cross_node_moves = 1,
                  .replicas = 1,
                  .bridges = 3,
                  .replicas_kept = 4,
                  .tokens = 5'000'000'000};
  return plan;
}

v1::Plan SmallMessage() {
  return PlanMessage(SmallPlan(), {.job = "demo", .step = 3, .pass = "update"}, {3, 7});
}

void ExpectSame(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.topology, b.topology);
  EXPECT_EQ(a.digest, b.digest);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].home_rank, b.layers[l].home_rank);
    EXPECT_EQ(a.layers[l].moves, b.layers[l].moves);
    EXPECT_EQ(a.layers[l].replicas, b.layers[l].replicas);
  }
  EXPECT_EQ(a.summary.imbalance_before, b.summary.imbalance_before);
  EXPECT_EQ(a.summary.imbalance_after, b.summary.imbalance_after);
  EXPECT_EQ(a.summary.lower_bound, b.summary.lower_bound);
  EXPECT_EQ(a.summary.node_imbalance_after, b.summary.node_imbalance_after);
  EXPECT_EQ(a.summary.plan_seconds, b.summary.plan_seconds);
  EXPECT_EQ(a.summary.moves, b.summary.moves);
  EXPECT_EQ(a.summary.cross_node_moves, b.summary.cross_node_moves);
  EXPECT_EQ(a.summary.replicas, b.summary.replicas);
  EXPECT_EQ(a.summary.bridges, b.summary.bridges);
  EXPECT_EQ(a.summary.replicas_kept, b.summary.replicas_kept);
  EXPECT_EQ(a.summary.tokens, b.summary.tokens);
}

TEST(PlanMessage, APlanComesBackAsItWas) {
  absl::StatusOr<Plan> plan = PlanFromMessage(SmallMessage(), "p.json");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectSame(*plan, SmallPlan());
}

TEST(PlanMessage, TheKeyAndTheModelsLayerNumbersAreInTheMessage) {
  const v1::Plan message = PlanMessage(
      SmallPlan(),
      {.job = "demo", .step = 3, .policy_version = 9, .pass = "logprob", .ep_group = "g"}, {3, 7});
  EXPECT_EQ(message.job(), "demo");
  EXPECT_EQ(message.step(), 3);
  EXPECT_EQ(message.policy_version(), 9);
  EXPECT_EQ(message.pass(), "logprob");
  EXPECT_EQ(message.ep_group(), "g");
  EXPECT_EQ(message.layers(0).layer(), 3);
  EXPECT_EQ(message.layers(1).layer(), 7);
  EXPECT_EQ(message.layers(1).micro_batches(1).micro_batch(), 1);
}

struct Breach {
  std::string message;  // what the error says
  std::function<void(v1::Plan&)> make;
};

TEST(PlanMessage, EveryBrokenRuleIsNamedWithItsPlace) {
  auto replica = [](v1::Plan& p, int m, int i) {
    return p.mutable_layers(1)->mutable_micro_batches(m)->mutable_replicas(i);
  };
  const std::vector<Breach> breaches = {
      {"layers: expected at least 1", [](v1::Plan& p) { p.clear_layers(); }},
      {"topology: nodes: expected 1 to", [](v1::Plan& p) { p.mutable_topology()->set_nodes(0); }},
      {"topology: nodes: expected 1 to",
       [](v1::Plan& p) { p.mutable_topology()->set_nodes(4'000'000'000); }},
      {"topology: num_experts: 4 experts do not divide",
       [](v1::Plan& p) { p.mutable_topology()->set_nodes(3); }},
      {"layers[1].layer: expected more than 3",
       [](v1::Plan& p) { p.mutable_layers(1)->set_layer(3); }},
      {"layers[1].homeRank: expected 4 experts as in layers[0], got 5",
       [](v1::Plan& p) { p.mutable_layers(1)->add_home_rank(0); }},
      {"layers[1].homeRank[2]: expected 0 to 3, got 4",
       [](v1::Plan& p) { p.mutable_layers(1)->set_home_rank(2, 4); }},
      {"layers[0].homeRank: expected 1 experts on every rank, got 2 on rank 0",
       [](v1::Plan& p) { p.mutable_layers(0)->set_home_rank(3, 0); }},
      {"layers[1].microBatches: expected 2 as in layers[0], got 1",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_micro_batches()->RemoveLast(); }},
      {"layers[0].microBatches[1].microBatch: expected 1, got 0",
       [](v1::Plan& p) { p.mutable_layers(0)->mutable_micro_batches(1)->set_micro_batch(0); }},
      {"layers[1].moves[0].expert: expected 0 to 3, got 4",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_moves(0)->set_expert(4); }},
      {"layers[1].moves[1].expert: expected more than 1",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_moves(1)->set_expert(1); }},
      {"layers[1].moves[0].toRank: expected the home 2 of expert 1, got 3",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_moves(0)->set_to_rank(3); }},
      {"layers[1].moves[0].fromRank: expected another rank than 2",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_moves(0)->set_from_rank(2); }},
      {"layers[1].moves[0].fromRank: expected another rank than 2",
       [](v1::Plan& p) { p.mutable_layers(1)->mutable_moves(0)->set_from_rank(4); }},
      {"layers[1].microBatches[0].replicas[0].expert: expected 0 to 3, got 9",
       [&](v1::Plan& p) { replica(p, 0, 0)->set_expert(9); }},
      {"layers[1].microBatches[0].replicas[1].rank: expected 0 to 3, got 4",
       [&](v1::Plan& p) { replica(p, 0, 1)->set_rank(4); }},
      {"layers[1].microBatches[0].replicas[0].slot: expected less than 2",
       [&](v1::Plan& p) { replica(p, 0, 0)->set_slot(2); }},
      {"replicas[0].rank: expected another rank than the home 0 of expert 0",
       [&](v1::Plan& p) { replica(p, 0, 0)->set_rank(0); }},
      {"replicas[1].rank: expected a rank in node 0 of the home of expert 0, got 2",
       [&](v1::Plan& p) { replica(p, 0, 1)->set_cross_node(false); }},
      {"replicas[0].rank: expected a rank outside node 0 of the home of expert 0 for a bridge",
       [&](v1::Plan& p) { replica(p, 0, 0)->set_cross_node(true); }},
      {"replicas[1]: expected rows ascending by (expert, rank), got (0, 1) after (0, 1)",
       [&](v1::Plan& p) { *replica(p, 0, 1) = *replica(p, 0, 0); }},
      {"replicas[2].slot: slot 1 of rank 2 is already used",
       [&](v1::Plan& p) {
         v1::Replica* row = p.mutable_layers(1)->mutable_micro_batches(0)->add_replicas();
         row->set_expert(3);  // home: rank 3, the other GPU of node 1
         row->set_rank(2);
         row->set_slot(1);
       }},
      {"microBatches[1].replicas: expected the bridges of microBatches[0]",
       [&](v1::Plan& p) { replica(p, 1, 0)->set_slot(0); }},
  };
  for (const Breach& breach : breaches) {
    v1::Plan message = SmallMessage();
    breach.make(message);
    const absl::Status status = PlanFromMessage(message, "p.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << breach.message;
    EXPECT_THAT(std::string(status.message()), StartsWith("p.json: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(breach.message));
  }
}

TEST(PlanMessage, APlanWithoutMicroBatchesIsAPlan) {
  v1::Plan message = SmallMessage();
  for (v1::LayerPlan& layer : *message.mutable_layers()) layer.clear_micro_batches();
  EXPECT_TRUE(PlanFromMessage(message, "p").ok());
}

}  // namespace
}  // namespace relibra

#include "worker_agent/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace relibra::agent {
namespace {

using ::testing::HasSubstr;

GroupShape Shape() {
  return {.nodes = 2, .gpus_per_node = 2, .replica_slots = 2, .experts = 8, .layer_ids = {5}};
}

// Ranks 0 1 | 2 3, experts 2r and 2r + 1 on rank r. Expert 0 (home 0) has a replica on rank 1, slot
// 0, and a bridge on rank 2, slot 1, in both micro-batches.
v1::Plan GoodPlan() {
  v1::Plan plan;
  plan.set_step(3);
  plan.set_digest("abc");
  plan.mutable_topology()->set_nodes(2);
  plan.mutable_topology()->set_gpus_per_node(2);
  plan.mutable_topology()->set_replica_slots(2);
  v1::LayerPlan& layer = *plan.add_layers();
  layer.set_layer(5);
  for (int e = 0; e < 8; ++e) layer.add_home_rank(e / 2);
  for (int m = 0; m < 2; ++m) {
    v1::MicroBatchPlan& micro_batch = *layer.add_micro_batches();
    micro_batch.set_micro_batch(m);
    v1::Replica& replica = *micro_batch.add_replicas();
    replica.set_expert(0);
    replica.set_rank(1);
    replica.set_slot(0);
    replica.set_tokens(5);
    v1::Replica& bridge = *micro_batch.add_replicas();
    bridge.set_expert(0);
    bridge.set_rank(2);
    bridge.set_slot(1);
    bridge.set_tokens(4);
    bridge.set_cross_node(true);
    v1::SplitColumns& columns = *micro_batch.add_split_columns();
    columns.set_source_rank(1);
    for (int rank = 0; rank < 3; ++rank) {
      columns.add_experts(0);
      columns.add_ranks(rank);
      columns.add_tokens(10 + rank);
    }
  }
  return plan;
}

TEST(Plan, IsReadWithTheReadersOwnQuotas) {
  const auto plan = ReadPlan(GoodPlan(), Shape(), 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->id, (StepId{.step = 3}));
  ASSERT_EQ(plan->layers[0].micro_batches.size(), 2u);
  const MicroBatchPlan& m = plan->layers[0].micro_batches[0];
  ASSERT_EQ(m.quotas.size(), 3u);
  EXPECT_EQ(m.quotas[2].rank, 2);
  EXPECT_EQ(m.quotas[2].tokens, 12u);
  EXPECT_TRUE(m.replicas[1].bridge);
}

TEST(Plan, QuotasOfOtherSourceRanksAreLeftOut) {
  const auto plan = ReadPlan(GoodPlan(), Shape(), 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->layers[0].micro_batches[0].quotas.empty());
}

struct BadPlan {
  const char* what;
  std::function<void(v1::Plan&)> spoil;
  const char* message;
};

class PlanThatBreaksARule : public ::testing::TestWithParam<BadPlan> {};

TEST_P(PlanThatBreaksARule, IsRefusedByName) {
  v1::Plan plan = GoodPlan();
  GetParam().spoil(plan);
  const auto read = ReadPlan(plan, Shape(), 1);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(GetParam().message));
}

v1::LayerPlan& Layer(v1::Plan& plan) { return *plan.mutable_layers(0); }
v1::MicroBatchPlan& First(v1::Plan& plan) { return *Layer(plan).mutable_micro_batches(0); }
v1::Replica& Replica0(v1::Plan& plan) { return *First(plan).mutable_replicas(0); }
v1::SplitColumns& Columns(v1::Plan& plan) { return *First(plan).mutable_split_columns(0); }

INSTANTIATE_TEST_SUITE_P(
    Rules, PlanThatBreaksARule,
    ::testing::Values(
        BadPlan{"Topology", [](v1::Plan& p) { p.mutable_topology()->set_nodes(4); },
                "plan is for 4 nodes"},
        BadPlan{"NoDigest", [](v1::Plan& p) { p.clear_digest(); }, "no digest"},
        BadPlan{"LayerMissing", [](v1::Plan& p) { p.clear_layers(); }, "plan has 0 layers"},
        BadPlan{"LayerNumber", [](v1::Plan& p) { Layer(p).set_layer(6); }, "is 6, expected 5"},
        BadPlan{"HomesMissing", [](v1::Plan& p) { Layer(p).mutable_home_rank()->RemoveLast(); },
                "homes of 7 experts"},
        BadPlan{"HomeOutOfRange", [](v1::Plan& p) { Layer(p).set_home_rank(2, 4); },
                "expert 2 has home rank 4"},
        BadPlan{"HomesUneven", [](v1::Plan& p) { Layer(p).set_home_rank(7, 0); },
                "rank 0 is home to more than 2"},
        BadPlan{"MicroBatchNumber", [](v1::Plan& p) { First(p).set_micro_batch(1); },
                "micro-batch 0: is numbered 1"},
        BadPlan{"ReplicaOnItsHome", [](v1::Plan& p) { Replica0(p).set_rank(0); },
                "that is its home"},
        BadPlan{"ReplicaInAnotherNode", [](v1::Plan& p) { Replica0(p).set_rank(3); },
                "not in its home's node"},
        BadPlan{"BridgeInsideTheNode", [](v1::Plan& p) { Replica0(p).set_cross_node(true); },
                "a bridge inside its home's node"},
        BadPlan{"SlotOutOfRange", [](v1::Plan& p) { Replica0(p).set_slot(2); }, "slot below 2"},
        BadPlan{"SlotTwice",
                [](v1::Plan& p) {
                  v1::Replica& r = *First(p).add_replicas();
                  r.set_expert(6);
                  r.set_rank(2);
                  r.set_slot(1);
                },
                "replica of expert 6 on rank 2: slot 1 is used twice"},
        BadPlan{"ReplicaTwice",
                [](v1::Plan& p) {
                  *First(p).add_replicas() = Replica0(p);
                  First(p).mutable_replicas(2)->set_slot(1);
                },
                "expected ascending order"},
        BadPlan{"BridgeThatMoves", [](v1::Plan& p) { First(p).mutable_replicas(1)->set_slot(0); },
                "micro-batch 1: its bridges are not those of micro-batch 0"},
        BadPlan{"SplitToNoInstance", [](v1::Plan& p) { Columns(p).set_ranks(2, 3); },
                "split of expert 0 to rank 3: that rank holds no instance"},
        BadPlan{"SplitWithoutReplica", [](v1::Plan& p) { Columns(p).set_experts(2, 5); },
                "split of expert 5 to rank 2: the expert has no replica"},
        BadPlan{"SplitOfNoExpert", [](v1::Plan& p) { Columns(p).set_experts(2, 8); },
                "expected an expert below 8"},
        BadPlan{"RaggedColumns", [](v1::Plan& p) { Columns(p).add_tokens(1); },
                "have 3, 3 and 4 rows"},
        BadPlan{"SplitsOutOfOrder",
                [](v1::Plan& p) {
                  Columns(p).set_ranks(0, 2);
                  Columns(p).set_ranks(2, 0);
                },
                "expected ascending order"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace relibra::agent

#include "planner_service/trace/plan_splits.h"

#include <gtest/gtest.h>

#include <string>

#include "planner_service/trace/plan_message.h"

namespace relibra {
namespace {

TEST(PlanSplits, EveryMicroBatchGetsTheRowsOfItsReplicas) {
  // One node of two GPUs; expert 0 at home on rank 0. In micro-batch 1 a replica on rank 1 serves 3
  // of its 4 + 3 tokens: those of its own rank.
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  LayerPlan layer;
  layer.home_rank = {0, 1};
  layer.replicas = {{}, {{.expert = 0, .rank = 1, .slot = 0, .tokens = 3}}};
  const Loads loads =
      *Loads::FromCounts({.micro_batches = 2, .layers = 2, .sources = 2, .experts = 2},
                         {9, 9, 9, 9, 1, 0, 1, 0, 9, 9, 9, 9, 4, 0, 3, 0});
  v1::LayerPlan message = LayerMessage(layer, 5);
  AddSplits(topology, layer, loads, /*layer_index=*/1, message);
  EXPECT_EQ(message.micro_batches(0).splits_size(), 0);
  ASSERT_EQ(message.micro_batches(1).splits_size(), 2);
  EXPECT_EQ(message.micro_batches(1).splits(0).ShortDebugString(), "tokens: 4");
  EXPECT_EQ(message.micro_batches(1).splits(1).ShortDebugString(),
            "source_rank: 1 rank: 1 tokens: 3");
}

}  // namespace
}  // namespace relibra

#include "worker_agent/dispatch_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace relibra::agent {
namespace {

using ::testing::ElementsAre;

// One node of two ranks, four experts, two home slots and one replica slot a rank.
GroupShape Shape() {
  return {.nodes = 1, .gpus_per_node = 2, .replica_slots = 1, .experts = 4, .layer_ids = {0}};
}

// Expert 0 (home: rank 0, slot 0) has a replica on rank 1: physical slot 2.
MicroBatchPlan OneReplica(uint32_t at_home, uint32_t at_replica) {
  return {.replicas = {{.expert = 0, .rank = 1, .slot = 0, .tokens = at_replica}},
          .quotas = {{0, 0, at_home}, {0, 1, at_replica}}};
}

absl::StatusOr<DispatchMap> MapIds(const MicroBatchPlan* plan, const std::vector<int32_t>& ids,
                                   int top_k) {
  const Instances instances = InstancesOf(Shape(), Placement::Linear(Shape()), 0, plan);
  return MapTokens(Shape(), instances,
                   {.data = ids.data(),
                    .type = IdType::kI32,
                    .tokens = static_cast<int64_t>(ids.size()) / top_k,
                    .top_k = top_k});
}

TEST(DispatchMap, InstancesListTheHomeFirstThenReplicasWithTheirQuotas) {
  const MicroBatchPlan plan = OneReplica(3, 2);
  const Instances instances = InstancesOf(Shape(), Placement::Linear(Shape()), 0, &plan);
  EXPECT_THAT(instances.offsets, ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(instances.rank, ElementsAre(0, 1, 0, 1, 1));
  EXPECT_THAT(instances.slot, ElementsAre(0, 2, 1, 0, 1));
  EXPECT_THAT(instances.quota, ElementsAre(3, 2, 0, 0, 0));
}

TEST(DispatchMap, PlannedTokensAreSplitByTheQuotasExactly) {
  const MicroBatchPlan plan = OneReplica(3, 2);
  const auto map = MapIds(&plan, {0, 1, 0, 0, 2, 0, 0}, 1);
  ASSERT_TRUE(map.ok()) << map.status();
  // Destinations: rank 0 slots 0 1 2, rank 1 slots 0 1 2.
  EXPECT_THAT(map->counts, ElementsAre(3, 1, 0, 1, 0, 2));
  EXPECT_EQ(map->rows(), 7);
  EXPECT_EQ(map->unplanned, 0u);
}

TEST(DispatchMap, WithoutAPlanEveryTokenGoesHome) {
  const auto map = MapIds(nullptr, {0, 1, 2, 3, 3, 0}, 2);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(map->counts, ElementsAre(2, 1, 0, 1, 2, 0));
  EXPECT_EQ(map->unplanned, 0u);
}

TEST(DispatchMap, MoreTokensThanPlannedAreServedInProportionAndReported) {
  const MicroBatchPlan plan = OneReplica(3, 1);
  const auto map = MapIds(&plan, std::vector<int32_t>(8, 0), 1);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(map->counts, ElementsAre(6, 0, 0, 0, 0, 2));
  EXPECT_EQ(map->unplanned, 4u);
}

TEST(DispatchMap, TokensOfAnExpertThatWasPlannedToGetNoneGoHome) {
  const MicroBatchPlan plan = OneReplica(0, 0);
  const auto map = MapIds(&plan, {0, 0, 0}, 1);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(map->counts, ElementsAre(3, 0, 0, 0, 0, 0));
  EXPECT_EQ(map->unplanned, 3u);
}

TEST(DispatchMap, UnroutedTokensGetNoRowAndAreReported) {
  const auto map = MapIds(nullptr, {-1, 2, -1}, 1);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->rows(), 1);
  EXPECT_THAT(map->row_of_choice, ElementsAre(-1, 0, -1));
  EXPECT_EQ(map->unplanned, 2u);
}

TEST(DispatchMap, NoTokensAreNoRows) {
  const auto map = MapIds(nullptr, {}, 1);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->rows(), 0);
}

TEST(DispatchMap, AnIdThatIsNoExpertIsAnError) {
  EXPECT_EQ(MapIds(nullptr, {0, 4}, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DispatchMap, WhateverArrivesEveryTokenGetsOneInstanceOfItsExpert) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const MicroBatchPlan plan =
        OneReplica(static_cast<uint32_t>(random() % 20), static_cast<uint32_t>(random() % 20));
    std::vector<int32_t> ids(random() % 100);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 5) - 1;
    const auto map = MapIds(&plan, ids, 1);
    ASSERT_TRUE(map.ok()) << map.status();
    std::map<int32_t, int> rows;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0) {
        EXPECT_EQ(map->row_of_choice[i], -1);
        continue;
      }
      ++rows[map->row_of_choice[i]];
      const bool at_home = map->rank[i] == ids[i] / 2 && map->slot[i] == ids[i] % 2;
      const bool at_replica = ids[i] == 0 && map->rank[i] == 1 && map->slot[i] == 2;
      EXPECT_TRUE(at_home || at_replica);
      EXPECT_EQ(map->choice_of_row[map->row_of_choice[i]], static_cast<int32_t>(i));
    }
    EXPECT_EQ(static_cast<int64_t>(rows.size()), map->rows());
  }
}

}  // namespace
}  // namespace relibra::agent

#include "worker_agent/move_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace relibra::agent {
namespace {

// Replays the rounds on the spare memory and slots of every rank, without the code under test.
void Check(const Placement& now, const std::vector<std::vector<int32_t>>& homes,
           const GroupShape& shape, const RoundLimits& limits,
           const std::vector<MoveRound>& rounds) {
  std::map<std::pair<int, int>, std::pair<int, int>> where;  // (layer, expert) -> (rank, slot)
  for (int l = 0; l < shape.layers(); ++l) {
    for (int e = 0; e < shape.experts; ++e) where[{l, e}] = {now.RankOf(l, e), now.SlotOf(l, e)};
  }
  std::map<std::pair<int, int>, int> moved;
  for (const MoveRound& round : rounds) {
    EXPECT_FALSE(round.transfers.empty());
    std::map<std::pair<int, int>, int> arriving;  // (layer, rank)
    std::map<int, int64_t> arriving_in_all;
    for (const Transfer& t : round.transfers) {
      const std::pair<int, int> key = {t.from.layer, t.expert};
      EXPECT_EQ(where[key], (std::pair{t.from.rank, t.from.slot}));
      EXPECT_LE(++arriving[std::pair(t.from.layer, t.to_rank)], limits.per_layer);
      EXPECT_LE(++arriving_in_all[t.to_rank], limits.in_all);
      EXPECT_EQ(++moved[key], 1) << "an expert moves twice";
    }
    for (const Transfer& t : round.transfers) {
      where[{t.from.layer, t.expert}] = {t.to_rank, t.to_slot};
    }
    std::set<std::vector<int>> taken;
    for (const auto& [key, at] : where) {
      EXPECT_TRUE(taken.insert({key.first, at.first, at.second}).second) << "two in one slot";
      EXPECT_EQ(round.after.RankOf(key.first, key.second), at.first);
      EXPECT_EQ(round.after.SlotOf(key.first, key.second), at.second);
    }
  }
  for (const auto& [key, at] : where) EXPECT_EQ(homes[key.first][key.second], at.first);
}

TEST(MoveRounds, AnyPermutationIsReachedWithinTheLimits) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    GroupShape shape{.nodes = 1 + static_cast<int>(random() % 3),
                     .gpus_per_node = 1 + static_cast<int>(random() % 4),
                     .replica_slots = 1,
                     .experts = 0,
                     .layer_ids = {0, 1}};
    shape.experts = shape.ranks() * (1 + static_cast<int>(random() % 5));
    const Placement now = Placement::Linear(shape);
    auto homes = now.HomeRanks();
    for (auto& layer : homes) {
      for (uint64_t swap = random() % (shape.experts + 1); swap > 0; --swap) {
        std::swap(layer[random() % shape.experts], layer[random() % shape.experts]);
      }
    }
    const RoundLimits limits{.per_layer = 1 + static_cast<int>(random() % 3),
                             .in_all = 1 + static_cast<int64_t>(random() % 5)};
    const auto rounds = MoveRounds(now, homes, shape, limits);
    ASSERT_TRUE(rounds.ok()) << rounds.status();
    Check(now, homes, shape, limits, *rounds);
  }
}

TEST(MoveRounds, NothingToMoveIsNoRound) {
  const GroupShape shape{
      .nodes = 1, .gpus_per_node = 2, .replica_slots = 0, .experts = 4, .layer_ids = {0}};
  const Placement now = Placement::Linear(shape);
  EXPECT_TRUE(MoveRounds(now, now.HomeRanks(), shape, {})->empty());
}

TEST(MoveRounds, ACycleOfAllRanksNeedsOneSpareExpertOnEach) {
  const GroupShape shape{
      .nodes = 1, .gpus_per_node = 4, .replica_slots = 0, .experts = 4, .layer_ids = {0}};
  const auto rounds = MoveRounds(Placement::Linear(shape), {{1, 2, 3, 0}}, shape, {.in_all = 1});
  ASSERT_TRUE(rounds.ok());
  ASSERT_EQ(rounds->size(), 1u);
  EXPECT_EQ((*rounds)[0].transfers.size(), 4u);
}

TEST(MoveRounds, ASwapOfAllExpertsTakesAsManyRoundsAsTheLimitAsksFor) {
  const GroupShape shape{
      .nodes = 1, .gpus_per_node = 2, .replica_slots = 0, .experts = 12, .layer_ids = {0}};
  std::vector<int32_t> homes;
  homes.reserve(12);
  for (int e = 0; e < 12; ++e) homes.push_back(e < 6 ? 1 : 0);
  EXPECT_EQ(MoveRounds(Placement::Linear(shape), {homes}, shape, {.per_layer = 2})->size(), 3u);
  EXPECT_EQ(MoveRounds(Placement::Linear(shape), {homes}, shape, {.per_layer = 6})->size(), 1u);
}

}  // namespace
}  // namespace relibra::agent

#include "worker_agent/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace relibra::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two ranks, two home slots each, one layer.
GroupShape TwoByTwo() {
  return {.nodes = 1, .gpus_per_node = 2, .replica_slots = 1, .experts = 4, .layer_ids = {0}};
}

TEST(Placement, LinearPutsExpertsInOrder) {
  const Placement placement = Placement::Linear(TwoByTwo());
  EXPECT_THAT(placement.ExpertsOf(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(placement.ExpertsOf(0, 1), ElementsAre(2, 3));
}

TEST(Placement, AnIncomingExpertTakesTheSlotOfTheOneThatLeaves) {
  // 0 and 3 change places: 3 gets slot 0 of rank 0, 0 gets slot 1 of rank 1.
  const auto next = Placement::Linear(TwoByTwo()).WithHomes({{1, 0, 1, 0}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->ExpertsOf(0, 0), ElementsAre(3, 1));
  EXPECT_THAT(next->ExpertsOf(0, 1), ElementsAre(2, 0));
  EXPECT_THAT(Placement::Linear(TwoByTwo()).MovesTo(*next),
              ElementsAre(HomeMove{0, 0, 0, 0, 1, 1}, HomeMove{0, 3, 1, 1, 0, 0}));
}

TEST(Placement, HomesThatAreNoPermutationAreRefusedByName) {
  const Placement linear = Placement::Linear(TwoByTwo());
  EXPECT_THAT(std::string(linear.WithHomes({{0, 0, 0, 1}}).status().message()),
              HasSubstr("rank 0 is home to more than 2"));
  EXPECT_THAT(std::string(linear.WithHomes({{0, 0, 2, 1}}).status().message()),
              HasSubstr("expert 2: home rank is 2"));
  EXPECT_THAT(std::string(linear.WithHomes({{0, 0, 1}}).status().message()),
              HasSubstr("3 experts, expected 4"));
  EXPECT_THAT(std::string(linear.WithHomes({}).status().message()), HasSubstr("0 layers"));
}

TEST(Placement, AnyChainOfHomesKeepsEveryExpertInOneSlotAndStayersInPlace) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    GroupShape shape{.nodes = 1 + static_cast<int>(random() % 3),
                     .gpus_per_node = 1 + static_cast<int>(random() % 3),
                     .replica_slots = 0,
                     .experts = 0,
                     .layer_ids = {0, 1}};
    shape.experts = shape.ranks() * (1 + static_cast<int>(random() % 4));
    Placement placement = Placement::Linear(shape);
    for (int step = 0; step < 4; ++step) {
      auto homes = placement.HomeRanks();
      for (auto& layer : homes) std::shuffle(layer.begin(), layer.end(), random);
      const auto next = placement.WithHomes(homes);
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_EQ(next->HomeRanks(), homes);
      for (int l = 0; l < 2; ++l) {
        std::vector<int> seen;
        for (int r = 0; r < shape.ranks(); ++r) {
          for (const int e : next->ExpertsOf(l, r)) seen.push_back(e);
        }
        std::sort(seen.begin(), seen.end());
        for (int e = 0; e < shape.experts; ++e) {
          EXPECT_EQ(seen[e], e);
          if (placement.RankOf(l, e) == next->RankOf(l, e)) {
            EXPECT_EQ(placement.SlotOf(l, e), next->SlotOf(l, e));
          }
        }
      }
      EXPECT_EQ(placement == *next, placement.Fingerprint() == next->Fingerprint());
      placement = *next;
    }
  }
}

}  // namespace
}  // namespace relibra::agent

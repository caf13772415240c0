#include "planner_service/core/replicate.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/exhaustive.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Homes = std::vector<int32_t>;
using Totals = std::vector<uint32_t>;

TEST(ReplicateTest, OneReplicaLevelsTwoRanksInTheFirstSlot) {
  ReplicaPlanner planner({1, 2, 2}, Homes{0, 1}, {}, {});
  EXPECT_THAT(planner.Next(Totals{10, 4}), ElementsAre(Replica{0, 1, 0, 3}));
  EXPECT_EQ(planner.max_load(), 7);
  EXPECT_EQ(planner.kept(), 0);
}

TEST(ReplicateTest, AReplicaThatServesAgainKeepsItsSlotAndIsCounted) {
  // Ranks 0 and 1 have 20 and 2, then 2 and 20: expert 0 to rank 1; then expert 1 to rank 0, then
  // both once more.
  ReplicaPlanner planner({1, 2, 1}, Homes{0, 1}, {}, {});
  EXPECT_THAT(planner.Next(Totals{20, 2}), ElementsAre(Replica{0, 1, 0, 9}));
  EXPECT_THAT(planner.Next(Totals{30, 2}), ElementsAre(Replica{0, 1, 0, 14}));
  EXPECT_EQ(planner.kept(), 1);
  EXPECT_THAT(planner.Next(Totals{2, 20}), ElementsAre(Replica{1, 0, 0, 9}));
  EXPECT_EQ(planner.kept(), 0);
  EXPECT_THAT(planner.Next(Totals{5, 5}), IsEmpty());
  EXPECT_EQ(planner.kept(), 0);
}

TEST(ReplicateTest, NodesUseTheSlackOfTheSlowestToSaveCopies) {
  // Node 0 has 20 on two ranks; node 1 has 9 and 5, below 10 as it is.
  ReplicaPlanner planner({2, 2, 1}, Homes{0, 1, 2, 3}, {}, {});
  EXPECT_THAT(planner.Next(Totals{20, 0, 9, 5}), ElementsAre(Replica{0, 1, 0, 10}));
  EXPECT_EQ(planner.max_load(), 10);
}

TEST(ReplicateTest, SlackIsAShareOfTheMean) {
  // 104 and 96: with 5 % slack no copy is made, with 3 % one is.
  ReplicaPlanner loose({1, 2, 1}, Homes{0, 1}, {}, {.slack = 0.05});
  EXPECT_THAT(loose.Next(Totals{104, 96}), IsEmpty());
  ReplicaPlanner tight({1, 2, 1}, Homes{0, 1}, {}, {.slack = 0.03});
  EXPECT_THAT(tight.Next(Totals{104, 96}), SizeIs(1));
  EXPECT_LE(tight.max_load(), 103);
}

TEST(ReplicateTest, ACopyMustGainMoreThanItCosts) {
  // One copy takes the heaviest rank from 10 to 7.
  ReplicaPlanner pays({1, 2, 1}, Homes{0, 1}, {}, {.cost = 2.9});
  EXPECT_THAT(pays.Next(Totals{10, 4}), SizeIs(1));
  ReplicaPlanner dear({1, 2, 1}, Homes{0, 1}, {}, {.cost = 3.1});
  EXPECT_THAT(dear.Next(Totals{10, 4}), IsEmpty());
  EXPECT_EQ(dear.max_load(), 10);
}

TEST(ReplicateTest, ABridgeLevelsTwoNodesAndStaysWhereItServesNothing) {
  const std::vector<Bridge> bridges = {{0, 0, 1, 0}};
  ReplicaPlanner planner({2, 1, 1}, Homes{0, 1}, bridges, {});
  EXPECT_THAT(planner.Next(Totals{10, 4}), ElementsAre(Replica{0, 1, 0, 3, true}));
  EXPECT_EQ(planner.max_load(), 7);
  EXPECT_THAT(planner.Next(Totals{4, 10}), ElementsAre(Replica{0, 1, 0, 0, true}));
  EXPECT_EQ(planner.max_load(), 10);
  EXPECT_EQ(planner.kept(), 0) << "bridges are not counted";
}

TEST(ReplicateTest, WithoutSlotsOrTokensNothingHappens) {
  ReplicaPlanner none({2, 2, 0}, Homes{0, 1, 2, 3}, {}, {});
  EXPECT_THAT(none.Next(Totals{9, 1, 1, 1}), IsEmpty());
  EXPECT_EQ(none.max_load(), 9);
  ReplicaPlanner empty({2, 2, 1}, Homes{0, 1, 2, 3}, {}, {});
  EXPECT_THAT(empty.Next(Totals{0, 0, 0, 0}), IsEmpty());
  EXPECT_EQ(empty.max_load(), 0);
}

TEST(ReplicateTest, ReachesTheExhaustiveOptimumInNearlyAllTinyLayers) {
  Draw draw(51);
  int optimal = 0, planned = 0;
  for (int i = 0; i < 300; ++i) {
    const Topology topology{draw.Between(1, 3), draw.Between(2, 3), draw.Between(1, 2)};
    const int ranks = topology.num_ranks(), experts = ranks * draw.Between(1, 3);
    Homes homes;
    for (int e = 0; e < experts; ++e) homes.push_back(e % ranks);
    draw.Shuffle(homes);
    ReplicaPlanner planner(topology, homes, {}, {});
    for (int m = 0; m < 3; ++m) {
      Totals totals;
      for (int e = 0; e < experts; ++e) {
        totals.push_back(draw.OneIn(4) ? draw.Between(0, 200) : draw.Between(0, 30));
      }
      planner.Next(totals);
      const int64_t least = exhaustive::LeastMaxLoad(topology.nodes, topology.gpus_per_node,
                                                     topology.replica_slots, totals, homes);
      ASSERT_GE(planner.max_load(), least);
      optimal += planner.max_load() == least;
      ++planned;
    }
  }
  RecordProperty("optimal_of_900", optimal);
  EXPECT_GE(optimal, planned * 99 / 100);
}

}  // namespace
}  // namespace relibra

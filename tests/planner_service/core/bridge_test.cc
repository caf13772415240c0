#include "planner_service/core/bridge.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Homes = std::vector<int32_t>;
using Totals = std::vector<uint32_t>;

TEST(ChooseBridgesTest, TakesEachNodesHottestExpertToTheLeastLoadedRankOfTheNext) {
  // 2 x 2 ranks, 8 experts, two a rank; over both micro-batches:
  //   expert  0  1 | 2  3 | 4  5 | 6  7
  //   load    9  1 | 4 12 | 2  3 | 1  2
  const Homes homes = {0, 0, 1, 1, 2, 2, 3, 3};
  const Totals totals = {4, 1, 1, 12, 2, 0, 1, 1,  //
                         5, 0, 3, 0,  0, 3, 0, 1};
  const std::vector<Bridge> bridges = ChooseBridges({2, 2, 3}, totals, homes, 1);
  ASSERT_EQ(bridges.size(), 2u);
  // Node 0: expert 3 (12) to rank 3 (load 3, rank 2 has 5). Node 1: expert 5 (3) to rank 0 (10,
  // rank 1 has 16). In the highest of the 3 slots.
  EXPECT_EQ(std::tie(bridges[0].expert, bridges[0].from_node, bridges[0].rank, bridges[0].slot),
            std::make_tuple(3, 0, 3, 2));
  EXPECT_EQ(std::tie(bridges[1].expert, bridges[1].from_node, bridges[1].rank, bridges[1].slot),
            std::make_tuple(5, 1, 0, 2));
}

TEST(ChooseBridgesTest, AnExpertHotterThanARanksShareIsBridgedTwice) {
  // 2 x 2 ranks, 64 tokens, a rank's share 16: expert 0 (50) is hotter than expert 1 (6) even after
  // it gave one share away.
  const std::vector<Bridge> bridges =
      ChooseBridges({2, 2, 1}, Totals{50, 6, 4, 4}, Homes{0, 1, 2, 3}, 2);
  ASSERT_GE(bridges.size(), 2u);
  EXPECT_EQ(bridges[0].expert, 0);
  EXPECT_EQ(bridges[1].expert, 0);
  EXPECT_NE(bridges[0].rank, bridges[1].rank);
}

TEST(ChooseBridgesTest, NeedsTwoNodesASlotAndLoad) {
  EXPECT_THAT(ChooseBridges({1, 2, 2}, Totals{3, 1}, Homes{0, 1}, 1), IsEmpty());
  EXPECT_THAT(ChooseBridges({2, 1, 0}, Totals{3, 1}, Homes{0, 1}, 1), IsEmpty());
  EXPECT_THAT(ChooseBridges({2, 1, 1}, Totals{3, 1}, Homes{0, 1}, 0), IsEmpty());
  EXPECT_THAT(ChooseBridges({2, 1, 1}, Totals{0, 0}, Homes{0, 1}, 1), IsEmpty());
  // Node 1 has no load, so only node 0 has a bridge.
  EXPECT_EQ(ChooseBridges({2, 1, 1}, Totals{3, 0}, Homes{0, 1}, 1).size(), 1u);
}

TEST(ChooseBridgesTest, EachRankTakesOneAndFewerAreAPrefixOfMorePerNode) {
  Draw draw(7);
  for (int i = 0; i < 300; ++i) {
    const Instance x = DrawInstance(draw);
    Totals totals;
    const LoadShape& shape = x.loads.shape();
    for (int m = 0; m < shape.micro_batches; ++m) {
      totals.insert(totals.end(), x.loads.At(m, 0).begin(),
                    x.loads.At(m, 0).begin() + shape.experts);
    }
    std::vector<Bridge> fewer;
    for (int k = 1; k <= 5; ++k) {
      const std::vector<Bridge> more = ChooseBridges(x.topology, totals, x.current[0], k);
      std::set<int> ranks;
      std::map<int, int> of_node;
      size_t found = 0;
      for (const Bridge& b : more) {
        EXPECT_TRUE(ranks.insert(b.rank).second);
        EXPECT_LE(++of_node[b.from_node], std::min(k, x.topology.gpus_per_node));
        EXPECT_EQ(x.topology.NodeOf(x.current[0][b.expert]), b.from_node);
        EXPECT_EQ(x.topology.NodeOf(b.rank), (b.from_node + 1) % x.topology.nodes);
        found += std::any_of(fewer.begin(), fewer.end(), [&](const Bridge& f) {
          return f.expert == b.expert && f.rank == b.rank;
        });
      }
      EXPECT_EQ(found, fewer.size());
      fewer = more;
    }
  }
}

TEST(LevelNodesTest, ARingPassesSurplusOn) {
  // 3 nodes of 1 rank with 9, 3, 0 tokens, mean 4: node 0 hands 5 on, node 1 then has 8 and hands 4
  // on. Experts 0, 1, 2 have a bridge each; node 1 only has 3 of its own to give, so T is 5 (9 - 4
  // = 5, 3 + 4 - 3 = 4 ... and 0 + 3): T = 4 would need node 1 to give 4.
  const Homes homes = {0, 1, 2};
  const std::vector<Bridge> bridges = {{0, 0, 1, 0}, {1, 1, 2, 0}, {2, 2, 0, 0}};
  std::vector<int64_t> tokens;
  EXPECT_EQ(LevelNodes({3, 1, 1}, Totals{9, 3, 0}, homes, bridges, tokens), 5);
  // The least flow: node 0 must give 4; node 1, with 7, must give 2.
  EXPECT_THAT(tokens, ElementsAre(4, 2, 0));
}

TEST(LevelNodesTest, WithoutBridgesTheHeaviestNodeDecides) {
  std::vector<int64_t> tokens = {7};
  EXPECT_EQ(LevelNodes({2, 2, 1}, Totals{5, 4, 1, 1}, Homes{0, 1, 2, 3}, {}, tokens), 5);
  EXPECT_THAT(tokens, IsEmpty());
}

TEST(LevelNodesTest, NothingFlowsWhereNodesAreLevelOrEmpty) {
  const std::vector<Bridge> bridges = {{0, 0, 1, 0}, {1, 1, 0, 0}};
  std::vector<int64_t> tokens;
  EXPECT_EQ(LevelNodes({2, 1, 1}, Totals{6, 6}, Homes{0, 1}, bridges, tokens), 6);
  EXPECT_THAT(tokens, ElementsAre(0, 0));
  EXPECT_EQ(LevelNodes({2, 1, 1}, Totals{0, 0}, Homes{0, 1}, bridges, tokens), 0);
  EXPECT_THAT(tokens, ElementsAre(0, 0));
}

struct Level {
  int64_t target = 0;
  int64_t flow = 0;
};

// The least T and, for it, the least total flow, by trying every flow.
Level BruteForce(const Topology& topology, const Totals& totals, const Homes& homes,
                 const std::vector<Bridge>& bridges) {
  std::vector<int64_t> load(topology.nodes);
  for (size_t e = 0; e < homes.size(); ++e) load[topology.NodeOf(homes[e])] += totals[e];
  const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
  for (int64_t target = (total + topology.num_ranks() - 1) / topology.num_ranks();; ++target) {
    // An expert gives at most all it has, and at most T over each of its bridges.
    std::map<std::pair<int, int>, int64_t> over;  // (node, expert): T x bridges
    for (const Bridge& b : bridges) over[{b.from_node, b.expert}] += target;
    std::vector<int64_t> most(topology.nodes);
    for (const auto& [key, room] : over) {
      most[key.first] += std::min<int64_t>(room, totals[key.second]);
    }
    int64_t least = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> flow(topology.nodes);
    std::function<void(int)> set = [&](int n) {
      if (n < topology.nodes) {
        for (flow[n] = 0; flow[n] <= most[n]; ++flow[n]) set(n + 1);
        return;
      }
      int64_t sum = 0;
      for (int i = 0; i < topology.nodes; ++i) {
        const int64_t in = flow[(i + topology.nodes - 1) % topology.nodes];
        if (load[i] - flow[i] + in > target * topology.gpus_per_node) return;
        sum += flow[i];
      }
      least = std::min(least, sum);
    };
    set(0);
    if (least < std::numeric_limits<int64_t>::max()) return {target, least};
  }
}

TEST(LevelNodesTest, FindsTheLeastTargetAndTheLeastFlowOfABruteForce) {
  Draw draw(99);
  std::vector<int64_t> tokens;
  for (int i = 0; i < 3000; ++i) {
    const Topology topology{draw.Between(2, 4), draw.Between(1, 3), 1};
    const int ranks = topology.num_ranks();
    Homes homes(ranks);
    std::iota(homes.begin(), homes.end(), 0);
    Totals totals;
    const int most = topology.nodes == 4 ? 7 : 12;
    for (int e = 0; e < ranks; ++e) {
      totals.push_back(draw.OneIn(3) ? draw.Between(0, most) : draw.Between(0, 2));
    }
    const std::vector<Bridge> bridges =
        ChooseBridges(topology, totals, homes, draw.Between(1, topology.nodes == 4 ? 1 : 2));
    const Level expected = BruteForce(topology, totals, homes, bridges);
    const int64_t target = LevelNodes(topology, totals, homes, bridges, tokens);
    ASSERT_EQ(target, expected.target)
        << "case " << i << ": " << topology.nodes << " x " << topology.gpus_per_node << ", totals "
        << testing::PrintToString(totals) << ", tokens " << testing::PrintToString(tokens);
    ASSERT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), expected.flow)
        << "case " << i;
    std::map<int, int64_t> given;
    for (size_t b = 0; b < bridges.size(); ++b) {
      ASSERT_GE(tokens[b], 0);
      ASSERT_LE(tokens[b], target) << "case " << i;
      given[bridges[b].expert] += tokens[b];
    }
    for (const auto& [expert, sum] : given) ASSERT_LE(sum, totals[expert]) << "case " << i;
  }
}

}  // namespace
}  // namespace relibra

#include "planner_service/core/split.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/split_check.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SplitTest, OwnRankThenOwnNodeThenAnywhereInAscendingOrder) {
  // 2 nodes x 2 ranks, 1 expert at home on rank 0 with a replica on rank 1 (7 tokens) and a bridge
  // on rank 2 (3): the home serves 5. Sources send 4, 2, 4, 5.
  //   own rank:  r0 4 of 4 to r0 (1 left there), r1 2 to r1 (5 left), r2 3 to r2 (1 waits)
  //   own node:  nothing waits in node 0, r2 is full in node 1
  //   anywhere:  r2's 1 to r0; r3's 5 to r1
  std::vector<Split> splits;
  SplitTokens({2, 2, 1}, std::vector<uint32_t>{4, 2, 4, 5}, std::vector<int32_t>{0},
              std::vector<Replica>{{0, 1, 0, 7}, {0, 2, 0, 3, true}}, splits);
  EXPECT_THAT(splits, ElementsAre(Split{0, 0, 0, 4}, Split{0, 1, 1, 2}, Split{0, 2, 0, 1},
                                  Split{0, 2, 2, 3}, Split{0, 3, 1, 5}));
}

TEST(SplitTest, AnExpertWithoutReplicasHasNone) {
  std::vector<Split> splits = {{1, 2, 3, 4}};
  SplitTokens({1, 2, 1}, std::vector<uint32_t>{4, 2, 4, 5}, std::vector<int32_t>{0, 1}, {}, splits);
  EXPECT_THAT(splits, IsEmpty()) << "and what stood there before is gone";
}

TEST(SplitTest, AReplicaOfNothingAndAnEmptyHomeGetNoRows) {
  // The replica on rank 1 serves all 6 tokens, the one on rank 2 none, so the home has none.
  std::vector<Split> splits;
  SplitTokens({1, 3, 1}, std::vector<uint32_t>{1, 2, 3}, std::vector<int32_t>{0},
              std::vector<Replica>{{0, 1, 0, 6}, {0, 2, 0, 0}}, splits);
  EXPECT_THAT(splits, ElementsAre(Split{0, 0, 1, 1}, Split{0, 1, 1, 2}, Split{0, 2, 1, 3}));
}

TEST(SplitTest, LoadsUpToThirtyTwoBitsAreKept) {
  constexpr uint32_t kHalf = 1u << 31;
  std::vector<Split> splits;
  SplitTokens({1, 2, 1}, std::vector<uint32_t>{kHalf, kHalf - 1}, std::vector<int32_t>{0},
              std::vector<Replica>{{0, 1, 0, kHalf}}, splits);
  EXPECT_THAT(splits,
              ElementsAre(Split{0, 0, 0, kHalf - 1}, Split{0, 0, 1, 1}, Split{0, 1, 1, kHalf - 1}));
}

// A random expert layout with random replicas, bridges among them, and random quotas.
struct Problem {
  Topology topology;
  std::vector<uint32_t> loads;  // [S, E]
  std::vector<int32_t> homes;
  std::vector<Replica> replicas;
};

Problem DrawProblem(Draw& draw) {
  Problem p;
  p.topology = {draw.Between(1, 4), draw.Between(1, 4), 3};
  const int ranks = p.topology.num_ranks(), experts = ranks * draw.Between(1, 2);
  for (int e = 0; e < experts; ++e) p.homes.push_back(e % ranks);
  const int most = draw.OneIn(2) ? 3 : 1000;
  for (int i = 0; i < ranks * experts; ++i) {
    p.loads.push_back(draw.OneIn(3) ? 0 : draw.Between(0, most));
  }
  for (int e = 0; e < experts; ++e) {
    int left = 0;
    for (int s = 0; s < ranks; ++s) left += static_cast<int>(p.loads[s * experts + e]);
    for (int r = 0; r < ranks; ++r) {
      if (r == p.homes[e] || !draw.OneIn(3)) continue;
      const int tokens = draw.Between(0, left);
      left -= tokens;
      p.replicas.push_back({e, r, 0, static_cast<uint32_t>(tokens),
                            p.topology.NodeOf(r) != p.topology.NodeOf(p.homes[e])});
    }
  }
  return p;
}

// The quota of every rank for one expert, from its replicas and what they leave to the home.
std::vector<int64_t> QuotasOf(const Problem& p, int expert) {
  const int ranks = p.topology.num_ranks();
  std::vector<int64_t> quotas(ranks);
  for (int s = 0; s < ranks; ++s) quotas[p.homes[expert]] += p.loads[s * p.homes.size() + expert];
  for (const Replica& r : p.replicas) {
    if (r.expert != expert) continue;
    quotas[r.rank] += r.tokens;
    quotas[p.homes[expert]] -= r.tokens;
  }
  return quotas;
}

TEST(SplitTest, KeepsAsManyTokensOnTheirRankAndThenInTheirNodeAsAnySplitCan) {
  // No split keeps more than min(load, quota) on a rank, nor more than min(loads, quotas) in a
  // node; the splits reach both at once.
  Draw draw(20261201);
  std::vector<Split> splits;
  for (int i = 0; i < 3000; ++i) {
    const Problem p = DrawProblem(draw);
    SplitTokens(p.topology, p.loads, p.homes, p.replicas, splits);
    const absl::Status status = CheckSplits(p.topology, p.loads, p.homes, p.replicas, splits);
    ASSERT_TRUE(status.ok()) << "problem " << i << ": " << status;
    for (size_t e = 0; e < p.homes.size(); ++e) {
      if (std::none_of(p.replicas.begin(), p.replicas.end(),
                       [&](const Replica& r) { return r.expert == static_cast<int>(e); })) {
        continue;
      }
      const std::vector<int64_t> quotas = QuotasOf(p, static_cast<int>(e));
      const int gpus = p.topology.gpus_per_node;
      int64_t most_on_rank = 0, most_in_node = 0, on_rank = 0, in_node = 0;
      for (int n = 0; n < p.topology.nodes; ++n) {
        int64_t load_in_node = 0, quota_in_node = 0;
        for (int r = n * gpus; r < (n + 1) * gpus; ++r) {
          const int64_t load = p.loads[r * p.homes.size() + e];
          most_on_rank += std::min(load, quotas[r]);
          load_in_node += load;
          quota_in_node += quotas[r];
        }
        most_in_node += std::min(load_in_node, quota_in_node);
      }
      for (const Split& split : splits) {
        if (split.expert != static_cast<int>(e)) continue;
        if (split.source_rank == split.rank) on_rank += split.tokens;
        if (split.source_rank / gpus == split.rank / gpus) in_node += split.tokens;
      }
      ASSERT_EQ(on_rank, most_on_rank) << "problem " << i << ", expert " << e;
      ASSERT_EQ(in_node, most_in_node) << "problem " << i << ", expert " << e;
    }
  }
}

}  // namespace
}  // namespace relibra

// What holds of every plan, on thousands of small random batches and some large ones. The checkers
// share no code with the planner.

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/split.h"
#include "planner_service/core/split_check.h"

namespace relibra {
namespace {

struct Instance {
  Topology topology;
  Loads loads;
  Placement current;

  std::string ToString() const {
    const LoadShape& s = loads.shape();
    return absl::StrCat(topology.nodes, "x", topology.gpus_per_node, " R", topology.replica_slots,
                        " M", s.micro_batches, " L", s.layers, " E", s.experts);
  }
};

// Nodes 1-4, GPUs 1-4, R 0-3; hot experts, empty micro-batches, empty layers, homes dealt at
// random.
Instance DrawInstance(uint32_t seed, uint32_t most_tokens) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
  const Topology topology{1 + below(4), 1 + below(4), below(4)};
  const LoadShape shape{1 + below(4), 1 + below(3), topology.num_ranks(),
                        topology.num_ranks() * (1 + below(4))};
  Loads loads = *Loads::Create(shape);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int l = 0; l < shape.layers; ++l) {
      if (below(8) == 0) continue;
      const int hot = below(3) == 0 ? below(shape.experts) : -1;
      for (int s = 0; s < shape.sources; ++s) {
        for (int e = 0; e < shape.experts; ++e) {
          const uint32_t tokens = random() % (most_tokens + 1);
          loads.Mutable(m, l)[s * shape.experts + e] = e == hot ? 10 * tokens : tokens;
        }
      }
    }
  }
  Placement current = LinearPlacement(topology, shape.layers, shape.experts);
  if (below(2) == 0) {
    for (std::vector<int32_t>& homes : current) std::shuffle(homes.begin(), homes.end(), random);
  }
  return {topology, std::move(loads), std::move(current)};
}

Plan MakePlan(const Instance& i, const PlanOptions& options, ParallelFor parallel_for = InOrder) {
  absl::StatusOr<Plan> plan = PlanStep(i.loads, i.topology, i.current, options, parallel_for);
  EXPECT_TRUE(plan.ok()) << i.ToString() << ": " << plan.status();
  return *std::move(plan);
}

void ExpectKeepsEveryRule(const Instance& i, const Plan& plan) {
  const absl::Status rules = CheckPlan(i.loads, i.topology, i.current, plan);
  EXPECT_TRUE(rules.ok()) << i.ToString() << ": " << rules;
  std::vector<Split> splits;
  const absl::Status split_rules = CheckAllSplits(i.loads, plan, [&](int layer, int micro_batch) {
    SplitTokens(i.topology, i.loads.At(micro_batch, layer), plan.layers[layer].home_rank,
                plan.layers[layer].replicas[micro_batch], splits);
    return absl::Span<const Split>(splits);
  });
  EXPECT_TRUE(split_rules.ok()) << i.ToString() << ": " << split_rules;
}

// Sum over layers and micro-batches of the heaviest rank, recomputed from the plan.
int64_t Objective(const Instance& i, const Plan& plan) {
  const LoadShape& shape = i.loads.shape();
  int64_t objective = 0;
  for (int l = 0; l < shape.layers; ++l) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      std::vector<int64_t> load(i.topology.num_ranks());
      for (int s = 0; s < shape.sources; ++s) {
        for (int e = 0; e < shape.experts; ++e) {
          load[plan.layers[l].home_rank[e]] += i.loads.At(m, l)[s * shape.experts + e];
        }
      }
      for (const Replica& r : plan.layers[l].replicas[m]) {
        load[plan.layers[l].home_rank[r.expert]] -= r.tokens;
        load[r.rank] += r.tokens;
      }
      objective += *std::max_element(load.begin(), load.end());
    }
  }
  return objective;
}

constexpr uint32_t kFewTokens = 6;  // too few for the slack that saves copies to count

TEST(PlannerProperty, EveryPlanKeepsEveryRule) {
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    const Instance i = DrawInstance(seed, seed % 3 == 0 ? 2000 : kFewTokens);
    PlanOptions options;
    if (seed % 4 == 1) options.bridges = static_cast<int>(seed % 3);
    if (seed % 5 == 2) options.max_moves = seed % 7;
    if (seed % 6 == 3) options.move_cost = options.replica_cost = 1.5;
    if (seed % 20 == 0) options.effort = Effort::kThorough;
    const Plan plan = MakePlan(i, options);
    ExpectKeepsEveryRule(i, plan);
    if (options.max_moves) {
      EXPECT_LE(plan.summary.moves, *options.max_moves) << i.ToString();
    }
    if (options.bridges == 0) {
      EXPECT_EQ(plan.summary.bridges, 0) << i.ToString();
    }
    EXPECT_GE(plan.summary.imbalance_after, plan.summary.lower_bound - 1e-9) << i.ToString();
  }
}

TEST(PlannerProperty, ThePlanDoesNotDependOnThreadsOrTheirOrder) {
  const auto backwards = [](int n, absl::FunctionRef<void(int)> task) {
    for (int t = n - 1; t >= 0; --t) task(t);
  };
  const auto threads = [](int n, absl::FunctionRef<void(int)> task) {
    std::vector<std::thread> all;
    for (int t = 0; t < n; ++t) all.emplace_back([&task, t] { task(t); });
    for (std::thread& thread : all) thread.join();
  };
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const Instance i = DrawInstance(seed, 1000);
    const std::string digest = MakePlan(i, {}).digest;
    EXPECT_EQ(MakePlan(i, {}, backwards).digest, digest) << i.ToString();
    EXPECT_EQ(MakePlan(i, {}, threads).digest, digest) << i.ToString();
  }
}

TEST(PlannerProperty, MoreSlotsNeverMakeAPlanWorse) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Instance i = DrawInstance(seed, kFewTokens);
    PlanOptions options;
    options.bridges = 0;
    options.max_moves = 0;
    int64_t before = std::numeric_limits<int64_t>::max();
    for (int slots = 0; slots <= 4; ++slots) {
      i.topology.replica_slots = slots;
      const int64_t objective = Objective(i, MakePlan(i, options));
      EXPECT_LE(objective, before) << i.ToString();
      before = objective;
    }
  }
}

TEST(PlannerProperty, MoreBridgesNeverMakeAPlanWorse) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const Instance i = DrawInstance(seed, kFewTokens);
    PlanOptions options;
    options.max_moves = 0;
    int64_t before = std::numeric_limits<int64_t>::max();
    for (int bridges = 0; bridges <= 3; ++bridges) {
      options.bridges = bridges;
      const int64_t objective = Objective(i, MakePlan(i, options));
      EXPECT_LE(objective, before) << i.ToString() << ", bridges " << bridges;
      before = objective;
    }
  }
}

TEST(PlannerProperty, WhatCostsMoreThanItGainsIsNotDone) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Instance i = DrawInstance(seed, 100);
    PlanOptions options;
    options.move_cost = options.replica_cost = 1e12;
    const Plan plan = MakePlan(i, options);
    EXPECT_EQ(plan.summary.moves, 0) << i.ToString();
    EXPECT_EQ(plan.summary.replicas, 0) << i.ToString();
    EXPECT_EQ(plan.summary.bridges, 0) << i.ToString();
  }
}

TEST(PlannerProperty, ABalancedBatchIsLeftAlone) {
  for (int gpus = 1; gpus <= 4; ++gpus) {
    Instance i = DrawInstance(1, 1);
    i.topology = {2, gpus, 2};
    const LoadShape shape{3, 2, 2 * gpus, 8 * gpus};
    i.loads = *Loads::FromCounts(
        shape, std::vector<uint32_t>(size_t{1} * 3 * 2 * shape.sources * shape.experts, 7));
    i.current = LinearPlacement(i.topology, shape.layers, shape.experts);
    const Plan plan = MakePlan(i, {});
    EXPECT_EQ(plan.summary.moves, 0);
    EXPECT_EQ(plan.summary.replicas, 0);
    EXPECT_EQ(plan.summary.bridges, 0);
  }
}

TEST(PlannerProperty, SplitsKeepAsManyTokensOnTheirRankAndNodeAsCanBe) {
  // With quotas given, the most that stay on rank r is min(load of r, quota of r), and the most
  // that stay in a node is min(load of its ranks, quotas of its instances).
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    const Topology topology{1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 4),
                            2};
    const int ranks = topology.num_ranks();
    std::vector<uint32_t> loads(ranks);  // one expert
    uint64_t total = 0;
    for (uint32_t& load : loads) total += load = random() % 20;
    std::vector<uint32_t> quota(ranks);
    std::vector<Replica> replicas;
    const std::vector<int32_t> home = {static_cast<int32_t>(random() % ranks)};
    uint64_t left = total;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == home[0] || random() % 2 == 0) continue;
      quota[rank] = static_cast<uint32_t>(random() % (left + 1));
      left -= quota[rank];
      replicas.push_back(
          {0, rank, 0, quota[rank], topology.NodeOf(rank) != topology.NodeOf(home[0])});
    }
    quota[home[0]] = static_cast<uint32_t>(left);
    if (replicas.empty()) continue;
    std::vector<Split> splits;
    SplitTokens(topology, loads, home, replicas, splits);
    ASSERT_TRUE(CheckSplits(topology, loads, home, replicas, splits).ok());
    std::vector<uint64_t> in_node(topology.nodes), node_load(topology.nodes),
        node_quota(topology.nodes);
    std::vector<uint64_t> on_rank(ranks);
    for (const Split& split : splits) {
      if (split.rank == split.source_rank) on_rank[split.rank] += split.tokens;
      if (topology.NodeOf(split.rank) == topology.NodeOf(split.source_rank)) {
        in_node[topology.NodeOf(split.rank)] += split.tokens;
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(on_rank[rank], std::min(loads[rank], quota[rank]));
      node_load[topology.NodeOf(rank)] += loads[rank];
      node_quota[topology.NodeOf(rank)] += quota[rank];
    }
    for (int node = 0; node < topology.nodes; ++node) {
      EXPECT_EQ(in_node[node], std::min(node_load[node], node_quota[node]));
    }
  }
}

TEST(PlanStep, SaysWhatIsWrongWithItsInput) {
  const Topology topology{1, 2, 1};
  const Loads loads = *Loads::Create({1, 1, 2, 4});
  const Placement linear = LinearPlacement(topology, 1, 4);
  const auto message = [&](const Topology& t, const Loads& l, const Placement& p,
                           const PlanOptions& o) {
    return std::string(PlanStep(l, t, p, o, InOrder).status().message());
  };
  EXPECT_EQ(message({1, 3, 1}, loads, linear, {}),
            "num_experts: 4 experts do not divide evenly over 3 ranks");
  EXPECT_EQ(message({2, 2, 1}, loads, linear, {}), "loads: expected 4 source ranks, got 2");
  EXPECT_EQ(message(topology, loads, {}, {}), "placement: expected 1 layers, got 0");
  EXPECT_EQ(message(topology, loads, {{0, 0, 1}}, {}),
            "placement: layer 0: expected 4 experts, got 3");
  EXPECT_EQ(message(topology, loads, {{0, 0, 1, 2}}, {}),
            "placement: layer 0, expert 3: rank 2 is not in 0..1");
  EXPECT_EQ(message(topology, loads, {{0, 0, 0, 1}}, {}),
            "placement: layer 0: rank 0 is home to more than 2 experts");
  PlanOptions nan;
  nan.move_cost = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(topology, loads, linear, nan), "move_cost, replica_cost: expected 0 or more");
  Loads overflow = loads;
  overflow.Mutable(0, 0)[2] = overflow.Mutable(0, 0)[4 + 2] = 1u << 31;
  EXPECT_EQ(
      message(topology, overflow, linear, {}),
      "layer 0, micro-batch 0, expert 2: load over all source ranks does not fit into 32 bits");
}

TEST(PlanStep, TakesTheSmallestAndTheOddestShapes) {
  for (const auto& [topology, experts] :
       std::vector<std::pair<Topology, int>>{{{1, 1, 2}, 1},
                                             {{1, 1, 0}, 5},
                                             {{4, 1, 2}, 4},
                                             {{1, 72, 2}, 144},
                                             {{128, 8, 2}, 1024}}) {
    Loads loads = *Loads::Create({2, 1, topology.num_ranks(), experts});
    for (size_t c = 0; c < loads.Mutable(0, 0).size(); ++c) loads.Mutable(0, 0)[c] = c % 13;
    const Instance i{topology, loads, LinearPlacement(topology, 1, experts)};
    ExpectKeepsEveryRule(i, MakePlan(i, {}));  // micro-batch 1 is empty
  }
}

}  // namespace
}  // namespace relibra

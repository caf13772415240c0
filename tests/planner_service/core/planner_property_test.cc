// What holds of every plan, over thousands of small random instances and some larger ones. Numbers
// of slots, topologies and efforts are mixed in one process.

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/split.h"
#include "planner_service/core/split_check.h"
#include "tests/planner_service/core/plan_measures.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

#ifdef NDEBUG
constexpr int kShare = 1;
#else
constexpr int kShare = 24;  // sanitizers and debug builds are slow
#endif

// Balance is given up for fewer copies and moves: up to 0.09 % of the heaviest ranks, rounded down
// to whole tokens, so that loads below some 1,000 tokens a layer are planned exactly.
constexpr double kSlack = 0.0009;

double Tolerance(double cost) { return cost < 1000 ? 0 : kSlack * cost; }

void OneThreadATask(int n, absl::FunctionRef<void(int)> task) {
  std::vector<std::thread> threads;
  threads.reserve(n);
  for (int i = 0; i < n; ++i) threads.emplace_back([task, i] { task(i); });
  for (std::thread& thread : threads) thread.join();
}

void Backwards(int n, absl::FunctionRef<void(int)> task) {
  for (int i = n - 1; i >= 0; --i) task(i);
}

PlanOptions DrawOptions(Draw& draw) {
  PlanOptions options;
  if (draw.OneIn(3)) options.bridges = draw.Between(0, 3);
  if (draw.OneIn(2)) options.max_moves = draw.Between(0, 8);
  if (draw.OneIn(4)) options.move_cost = 100 * draw.Unit();
  if (draw.OneIn(4)) options.replica_cost = 20 * draw.Unit();
  if (draw.OneIn(100)) options.effort = Effort::kThorough;
  options.seed = draw.Between(0, 1000);
  return options;
}

Plan PlanOf(const Instance& x, const PlanOptions& options) {
  absl::StatusOr<Plan> plan = PlanStep(x.loads, x.topology, x.current, options, InOrder);
  EXPECT_TRUE(plan.ok()) << plan.status() << "\n" << x;
  return *std::move(plan);
}

void ExpectValid(const Instance& x, const Plan& plan) {
  absl::Status status = CheckPlan(x.loads, x.topology, x.current, plan);
  EXPECT_TRUE(status.ok()) << status << "\n" << x;
  std::vector<Split> splits;
  status = CheckAllSplits(x.loads, plan, [&](int l, int m) {
    SplitTokens(x.topology, x.loads.At(m, l), plan.layers[l].home_rank, plan.layers[l].replicas[m],
                splits);
    return absl::MakeConstSpan(splits);
  });
  EXPECT_TRUE(status.ok()) << status << "\n" << x;
}

// Calls `test` with `count` seeded instances, the options drawn for each, and the seed.
void ForInstances(uint64_t first_seed, int count, const InstanceLimits& limits,
                  const std::function<void(const Instance&, const PlanOptions&)>& test) {
  for (int i = 0; i < std::max(1, count / kShare); ++i) {
    const uint64_t seed = first_seed + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    const Instance instance = DrawInstance(draw, limits);
    test(instance, DrawOptions(draw));
    if (testing::Test::HasFailure()) return;  // one instance is enough to read
  }
}

TEST(PlannerPropertyTest, EveryPlanIsValidWithinItsLimitsAndNoWorseThanDoingNothing) {
  ForInstances(1, 2000, {}, [](const Instance& x, const PlanOptions& options) {
    const Plan plan = PlanOf(x, options);
    ExpectValid(x, plan);
    if (options.max_moves) {
      EXPECT_LE(plan.summary.moves, *options.max_moves) << x;
    }
    if (options.bridges) {
      EXPECT_LE(plan.summary.bridges,
                int64_t{1} * *options.bridges * x.topology.nodes * x.loads.shape().layers)
          << x;
    }
    const auto nothing =
        static_cast<double>(HeaviestRanksWithoutPlan(x.loads, x.topology, x.current));
    EXPECT_LE(CostOf(x.loads, plan, options), nothing + 1e-6) << x;
    EXPECT_LE(plan.summary.imbalance_after, plan.summary.imbalance_before + 1e-9) << x;
    EXPECT_LE(plan.summary.lower_bound, plan.summary.imbalance_after + 1e-9) << x;
  });
}

TEST(PlannerPropertyTest, LargerInstancesAreValidToo) {
  ForInstances(1, 40, {16, 8, 4, 4, 6, 2}, [](const Instance& x, const PlanOptions& options) {
    PlanOptions fast = options;
    fast.effort = Effort::kFast;
    ExpectValid(x, PlanOf(x, fast));
  });
}

TEST(PlannerPropertyTest, ThreadsAndOrderOfTasksChangeNothing) {
  ForInstances(5000, 250, {}, [](const Instance& x, const PlanOptions& options) {
    const std::string digest = PlanOf(x, options).digest;
    EXPECT_EQ(PlanOf(x, options).digest, digest) << "planned again\n" << x;
    for (const ParallelFor& parallel_for : {ParallelFor(OneThreadATask), ParallelFor(Backwards)}) {
      absl::StatusOr<Plan> plan = PlanStep(x.loads, x.topology, x.current, options, parallel_for);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(plan->digest, digest) << x;
    }
  });
}

TEST(PlannerPropertyTest, MoreSlotsAreNeverWorse) {
  ForInstances(10000, 300, {}, [](const Instance& x, PlanOptions options) {
    options.replica_cost = 0;  // what a copy costs makes the choice among more slots a heuristic
    options.effort = Effort::kFast;
    Instance with = x;
    double last = std::numeric_limits<double>::infinity();
    for (int slots = 0; slots <= 4; ++slots) {
      with.topology.replica_slots = slots;
      const double cost = CostOf(x.loads, PlanOf(with, options), options);
      EXPECT_LE(cost, last + Tolerance(last)) << slots << " slots\n" << x;
      last = cost;
    }
  });
}

TEST(PlannerPropertyTest, MoreMovesAllowedAreNeverWorse) {
  ForInstances(20000, 600, {}, [](const Instance& x, PlanOptions options) {
    options.replica_cost = 0;
    options.effort = Effort::kFast;
    double last = std::numeric_limits<double>::infinity();
    for (const std::optional<int64_t> most :
         std::initializer_list<std::optional<int64_t>>{0, 2, 3, 4, 6, 9, 100, std::nullopt}) {
      options.max_moves = most;
      const Plan plan = PlanOf(x, options);
      const double cost = CostOf(x.loads, plan, options);
      EXPECT_LE(cost, last + Tolerance(last)) << most.value_or(-1) << " moves\n" << x;
      EXPECT_LE(plan.summary.moves, most.value_or(plan.summary.moves)) << x;
      last = cost;
    }
  });
}

TEST(PlannerPropertyTest, MoreBridgesAllowedAreNeverWorse) {
  ForInstances(30000, 400, {}, [](const Instance& x, PlanOptions options) {
    options.replica_cost = 0;
    options.effort = Effort::kFast;
    double last = std::numeric_limits<double>::infinity();
    for (int bridges = 0; bridges <= 4; ++bridges) {
      options.bridges = bridges;
      const Plan plan = PlanOf(x, options);
      if (bridges == 0) {
        EXPECT_EQ(plan.summary.bridges, 0) << x;
      }
      const double cost = CostOf(x.loads, plan, options);
      EXPECT_LE(cost, last + Tolerance(last)) << bridges << " bridges\n" << x;
      last = cost;
    }
  });
}

TEST(PlannerPropertyTest, NothingChangesWhereChangesCostTooMuch) {
  ForInstances(40000, 500, {}, [](const Instance& x, PlanOptions options) {
    options.move_cost = 1e15;
    options.replica_cost = 1e15;
    const Plan plan = PlanOf(x, options);
    EXPECT_EQ(plan.summary.moves, 0) << x;
    EXPECT_EQ(plan.summary.replicas, 0) << x;
    EXPECT_EQ(plan.summary.bridges, 0) << x;
  });
}

TEST(PlannerPropertyTest, BalancedInputIsLeftAlone) {
  ForInstances(50000, 500, {}, [](const Instance& x, const PlanOptions& options) {
    // Every source rank sends the same number of tokens to every expert.
    const LoadShape& shape = x.loads.shape();
    Instance level = x;
    for (int l = 0; l < shape.layers; ++l) {
      for (int m = 0; m < shape.micro_batches; ++m) {
        absl::Span<uint32_t> matrix = level.loads.Mutable(m, l);
        std::fill(matrix.begin(), matrix.end(), (7 * l + 3 * m) % 40);
      }
    }
    const Plan plan = PlanOf(level, options);
    EXPECT_EQ(plan.summary.moves, 0) << level;
    EXPECT_EQ(plan.summary.replicas, 0) << level;
    EXPECT_EQ(plan.summary.bridges, 0) << level;
  });
}

TEST(PlannerPropertyTest, PlanningAgainMovesNothingUnlessItGains) {
  ForInstances(60000, 400, {}, [](const Instance& x, PlanOptions options) {
    options.max_moves = std::nullopt;
    options.move_cost = 0;
    options.replica_cost = 0;
    const Plan plan = PlanOf(x, options);
    Instance next = x;
    for (size_t l = 0; l < plan.layers.size(); ++l) next.current[l] = plan.layers[l].home_rank;
    const Plan again = PlanOf(next, options);
    for (size_t l = 0; l < plan.layers.size(); ++l) {
      const LayerPlan &before = plan.layers[l], &after = again.layers[l];
      if (after.moves.empty()) continue;
      size_t replicas_before = 0, replicas_after = 0;
      for (const auto& replicas : before.replicas) replicas_before += replicas.size();
      for (const auto& replicas : after.replicas) replicas_after += replicas.size();
      const int layer = static_cast<int>(l);
      EXPECT_TRUE(HeaviestRanks(x.loads, x.topology, layer, after) <
                      HeaviestRanks(x.loads, x.topology, layer, before) ||
                  replicas_after < replicas_before)
          << "layer " << l << "\n"
          << next;
    }
  });
}

}  // namespace
}  // namespace relibra

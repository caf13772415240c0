// How close plans of tiny instances come to the optimum that exhaustive search finds.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/core/bounds.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/planner.h"
#include "tests/planner_service/core/exhaustive.h"
#include "tests/planner_service/core/plan_measures.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

#ifdef NDEBUG
constexpr int kShare = 1;
#else
constexpr int kShare = 10;  // sanitizers and debug builds are slow
#endif

// The gaps of many plans to their optima, printed as a distribution.
class Gaps {
 public:
  void Add(int64_t found, int64_t least) {
    EXPECT_GE(found, least);
    gaps_.push_back(least == 0 ? 0 : static_cast<double>(found) / static_cast<double>(least) - 1);
  }
  double optimal_share() const { return ShareUpTo(0); }
  double worst() const { return *std::max_element(gaps_.begin(), gaps_.end()); }
  void Print(const std::string& name) const {
    printf(
        "%s: %zu instances, optimal %.2f %%, within 0.1 %% %.2f %%, 1 %% %.2f %%, worst %.3f %%\n",
        name.c_str(), gaps_.size(), 100 * ShareUpTo(0), 100 * ShareUpTo(0.001),
        100 * ShareUpTo(0.01), 100 * worst());
  }

 private:
  double ShareUpTo(double gap) const {
    return static_cast<double>(
               std::count_if(gaps_.begin(), gaps_.end(), [&](double g) { return g <= gap; })) /
           static_cast<double>(gaps_.size());
  }
  std::vector<double> gaps_;
};

// One layer, loads small enough that no balance is given up for fewer copies.
Instance DrawTiny(Draw& draw, const Topology& topology, int experts_per_rank) {
  const LoadShape shape{draw.Between(1, 3), 1, topology.num_ranks(),
                        topology.num_ranks() * experts_per_rank};
  Instance x{topology, *Loads::Create(shape), LinearPlacement(topology, 1, shape.experts)};
  draw.Shuffle(x.current[0]);
  const int most = draw.Between(1, 40);
  const int hot = draw.OneIn(2) ? draw.Between(0, shape.experts - 1) : -1;
  for (int m = 0; m < shape.micro_batches; ++m) {
    if (draw.OneIn(10)) continue;
    for (int e = 0; e < shape.experts; ++e) {
      const int tokens = draw.Between(0, e == hot ? 5 * most : most);
      x.loads.Mutable(m, 0)[draw.Between(0, shape.sources - 1) * shape.experts + e] = tokens;
    }
  }
  return x;
}

int64_t Planned(const Instance& x, std::optional<int64_t> max_moves) {
  PlanOptions options;
  options.bridges = 0;
  options.max_moves = max_moves;
  absl::StatusOr<Plan> plan = PlanStep(x.loads, x.topology, x.current, options, InOrder);
  EXPECT_TRUE(plan.ok());
  const absl::Status status = CheckPlan(x.loads, x.topology, x.current, *plan);
  EXPECT_TRUE(status.ok()) << status << "\n" << x;
  return HeaviestRanks(x.loads, *plan);
}

TEST(PlannerOptimumTest, HomesFixedNearlyEveryPlanIsOptimal) {
  Draw draw(71);
  Gaps gaps;
  for (int i = 0; i < 2000 / kShare; ++i) {
    const int gpus = draw.Between(1, 4);
    const Topology topology{draw.Between(1, 3), gpus, draw.Between(0, gpus == 4 ? 1 : 2)};
    const Instance x = DrawTiny(draw, topology, draw.Between(1, gpus < 3 ? 3 : 2));
    const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
    const size_t experts = x.current[0].size();
    int64_t least = 0;
    for (size_t begin = 0; begin < totals.size(); begin += experts) {
      const auto of_micro_batch = absl::MakeConstSpan(totals).subspan(begin, experts);
      const int64_t most = exhaustive::LeastMaxLoad(topology.nodes, gpus, topology.replica_slots,
                                                    of_micro_batch, x.current[0]);
      int64_t total = 0;
      for (uint32_t tokens : of_micro_batch) total += tokens;
      if (total > 0) {
        EXPECT_LE(
            LowerBound(topology, of_micro_batch, 0),
            static_cast<double>(most) * topology.num_ranks() / static_cast<double>(total) + 1e-9)
            << x;
      }
      least += most;
    }
    gaps.Add(Planned(x, 0), least);
  }
  gaps.Print("homes fixed");
  EXPECT_GE(gaps.optimal_share(), 0.99);
  EXPECT_LE(gaps.worst(), 0.15);
}

TEST(PlannerOptimumTest, MovesFreeNearlyEveryPlanIsOptimal) {
  Draw draw(73);
  Gaps gaps;
  for (int i = 0; i < 1000 / kShare; ++i) {
    struct Size {
      int nodes, gpus, experts_per_rank;
    };
    const Size sizes[] = {{2, 2, 1}, {2, 2, 2}, {1, 3, 2}, {3, 1, 2}, {2, 1, 4}, {1, 2, 3}};
    const Size& size = sizes[draw.Between(0, 5)];
    const Topology topology{size.nodes, size.gpus, draw.Between(0, 2)};
    const Instance x = DrawTiny(draw, topology, size.experts_per_rank);
    const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
    const int experts = x.loads.shape().experts;
    const int64_t least = exhaustive::LeastSumOfMaxLoads(topology.nodes, topology.gpus_per_node,
                                                         topology.replica_slots, totals, experts);
    gaps.Add(Planned(x, std::nullopt), least);
    for (size_t begin = 0; begin < totals.size(); begin += experts) {
      const auto of_micro_batch = absl::MakeConstSpan(totals).subspan(begin, experts);
      const int64_t most = exhaustive::LeastSumOfMaxLoads(
          topology.nodes, topology.gpus_per_node, topology.replica_slots, of_micro_batch, experts);
      int64_t total = 0;
      for (uint32_t tokens : of_micro_batch) total += tokens;
      if (total == 0) continue;
      EXPECT_LE(
          LowerBound(topology, of_micro_batch, 0),
          static_cast<double>(most) * topology.num_ranks() / static_cast<double>(total) + 1e-9)
          << x;
    }
  }
  gaps.Print("moves free");
  EXPECT_GE(gaps.optimal_share(), 0.99);
  EXPECT_LE(gaps.worst(), 0.1);
}

}  // namespace
}  // namespace relibra

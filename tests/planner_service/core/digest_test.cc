#include "planner_service/core/digest.h"

#include <functional>
#include <set>

#include "gtest/gtest.h"

namespace relibra {
namespace {

Plan Example() {
  Plan plan;
  plan.topology = {2, 2, 2};
  plan.layers.resize(2);
  plan.layers[0].home_rank = {0, 1, 2, 3};
  plan.layers[0].moves = {{1, 2, 1}, {2, 1, 2}};
  plan.layers[0].replicas = {{{0, 1, 0, 5}, {3, 2, 1, 7}}, {}};
  plan.layers[1].home_rank = {3, 2, 1, 0};
  plan.layers[1].replicas = {{}, {{1, 0, 1, 9, true}}};
  return plan;
}

TEST(DigestTest, EqualPlansHaveEqualDigestsOf32HexDigits) {
  EXPECT_EQ(DigestOf(Example()), DigestOf(Example()));
  EXPECT_EQ(DigestOf(Example()).size(), 32u);
  EXPECT_EQ(DigestOf(Example()).find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(DigestTest, ChangesWithEveryField) {
  const std::vector<std::function<void(Plan&)>> changes = {
      [](Plan& p) { p.topology.nodes = 4; },
      [](Plan& p) { p.topology.gpus_per_node = 4; },
      [](Plan& p) { p.topology.replica_slots = 3; },
      [](Plan& p) { p.layers.pop_back(); },
      [](Plan& p) { p.layers.emplace_back(); },
      [](Plan& p) { std::swap(p.layers[0], p.layers[1]); },
      [](Plan& p) { std::swap(p.layers[0].home_rank[0], p.layers[0].home_rank[1]); },
      [](Plan& p) { p.layers[1].home_rank[3] = 1; },
      [](Plan& p) { p.layers[0].moves.pop_back(); },
      [](Plan& p) { p.layers[0].moves[0].expert = 0; },
      [](Plan& p) { p.layers[0].moves[0].from_rank = 3; },
      [](Plan& p) { p.layers[0].moves[0].to_rank = 3; },
      [](Plan& p) { p.layers[0].replicas.pop_back(); },
      [](Plan& p) { p.layers[0].replicas[0].pop_back(); },
      [](Plan& p) { std::swap(p.layers[0].replicas[0], p.layers[0].replicas[1]); },
      [](Plan& p) { p.layers[0].replicas[0][0].expert = 1; },
      [](Plan& p) { p.layers[0].replicas[0][0].rank = 0; },
      [](Plan& p) { p.layers[0].replicas[0][0].slot = 1; },
      [](Plan& p) { p.layers[0].replicas[0][0].tokens = 4; },
      [](Plan& p) { p.layers[0].replicas[0][0].cross_node = true; },
      [](Plan& p) { p.layers[1].replicas[1][0].cross_node = false; },
  };
  std::set<std::string> digests = {DigestOf(Example())};
  for (size_t i = 0; i < changes.size(); ++i) {
    Plan plan = Example();
    changes[i](plan);
    EXPECT_TRUE(digests.insert(DigestOf(plan)).second) << "change " << i;
  }
}

TEST(DigestTest, LeavesOutTheSummaryWithItsClock) {
  Plan plan = Example();
  plan.summary.plan_seconds = 12;
  plan.summary.imbalance_after = 1.5;
  plan.digest = "00";
  EXPECT_EQ(DigestOf(plan), DigestOf(Example()));
}

TEST(DigestTest, PlansThatDifferInOneTokenNeverCollideHere) {
  std::set<std::string> digests;
  for (uint32_t tokens = 0; tokens < 5000; ++tokens) {
    Plan plan = Example();
    plan.layers[0].replicas[0][1].tokens = tokens;
    digests.insert(DigestOf(plan));
  }
  EXPECT_EQ(digests.size(), 5000u);
}

}  // namespace
}  // namespace relibra

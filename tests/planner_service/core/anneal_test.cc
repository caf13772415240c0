#include "planner_service/core/anneal.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "gtest/gtest.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

using Groups = std::vector<int32_t>;

struct Case {
  int groups;
  std::vector<uint32_t> totals;
  Groups start;
};

Case DrawCase(Draw& draw, int most_groups, int most_a_group) {
  Case c;
  c.groups = draw.Between(2, most_groups);
  const int experts = c.groups * draw.Between(1, most_a_group);
  const int micro_batches = draw.Between(1, 6);
  for (int i = 0; i < micro_batches * experts; ++i) c.totals.push_back(draw.Between(0, 1000));
  for (int e = 0; e < experts; ++e) c.start.push_back(e % c.groups);
  return c;
}

int64_t ObjectiveOf(const ExpertLoads& loads, int groups, const Groups& node) {
  return NodeLoads(loads, groups, node).Objective();
}

int64_t Optimum(const ExpertLoads& loads, int groups) {
  const int experts = loads.experts();
  Groups node(experts);
  std::vector<int> room(groups, experts / groups);
  int64_t least = std::numeric_limits<int64_t>::max();
  std::function<void(int)> place = [&](int e) {
    if (e == experts) {
      least = std::min(least, ObjectiveOf(loads, groups, node));
      return;
    }
    for (int g = 0; g < groups; ++g) {
      if (room[g] == 0) continue;
      --room[g];
      node[e] = g;
      place(e + 1);
      ++room[g];
    }
  };
  place(0);
  return least;
}

TEST(AnnealTest, IsNeverWorseThanItsStartAndKeepsSizes) {
  Draw draw(4);
  for (int i = 0; i < 200; ++i) {
    const Case c = DrawCase(draw, 6, 5);
    const ExpertLoads loads(c.totals, static_cast<int>(c.start.size()));
    const Groups end = Anneal(loads, c.groups, c.start, draw.Between(0, 2000), i);
    EXPECT_LE(ObjectiveOf(loads, c.groups, end), ObjectiveOf(loads, c.groups, c.start));
    Groups sorted = end, expected = c.start;
    std::sort(sorted.begin(), sorted.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(sorted, expected);
  }
}

TEST(AnnealTest, TheSeedDecidesAll) {
  Draw draw(9);
  const Case c = DrawCase(draw, 6, 8);
  const ExpertLoads loads(c.totals, static_cast<int>(c.start.size()));
  EXPECT_EQ(Anneal(loads, c.groups, c.start, 3000, 17), Anneal(loads, c.groups, c.start, 3000, 17));
}

TEST(AnnealTest, PerfectGroupsAreLeftAlone) {
  const ExpertLoads loads(std::vector<uint32_t>(2 * 6, 40), 6);
  const Groups start = {2, 0, 1, 1, 0, 2};
  EXPECT_EQ(Anneal(loads, 3, start, 5000, 1), start);
}

TEST(AnnealTest, FindsTheOptimumOfNearlyEveryTinyCase) {
  Draw draw(12);
  int optimal = 0;
  constexpr int kCases = 150;
  for (int i = 0; i < kCases; ++i) {
    const Case c = DrawCase(draw, 3, 3);
    const ExpertLoads loads(c.totals, static_cast<int>(c.start.size()));
    const int64_t found = ObjectiveOf(loads, c.groups, Anneal(loads, c.groups, c.start, 5000, i));
    const int64_t least = Optimum(loads, c.groups);
    EXPECT_GE(found, least);
    optimal += found == least;
  }
  RecordProperty("optimal", optimal);
  EXPECT_GE(optimal, kCases * 95 / 100);
}

}  // namespace
}  // namespace relibra

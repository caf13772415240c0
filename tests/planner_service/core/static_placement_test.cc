#include "planner_service/core/static_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Placed {
  std::vector<int64_t> physical_to_logical;
  std::vector<int64_t> count;
};

absl::StatusOr<Placed> Place(const StaticShape& shape, const std::vector<double>& weight) {
  absl::StatusOr<StaticPlacer> placer = StaticPlacer::Create(shape);
  if (!placer.ok()) return placer.status();
  Placed placed{std::vector<int64_t>(shape.physical), std::vector<int64_t>(shape.experts)};
  const absl::Status status = placer->Place(weight, absl::MakeSpan(placed.physical_to_logical),
                                            absl::MakeSpan(placed.count));
  if (!status.ok()) return status;
  return placed;
}

std::vector<double> GpuLoads(const StaticShape& shape, const std::vector<double>& weight,
                             const Placed& placed) {
  std::vector<double> loads(shape.gpus);
  const int slots = shape.physical / shape.gpus;
  for (int p = 0; p < shape.physical; ++p) {
    const int64_t expert = placed.physical_to_logical[p];
    loads[p / slots] += weight[expert] / static_cast<double>(placed.count[expert]);
  }
  return loads;
}

double MaxLoad(const StaticShape& shape, const std::vector<double>& weight, const Placed& placed) {
  const std::vector<double> loads = GpuLoads(shape, weight, placed);
  return *std::max_element(loads.begin(), loads.end());
}

int Duplicates(const StaticShape& shape, const Placed& placed) {
  const int slots = shape.physical / shape.gpus;
  int duplicates = 0;
  for (int g = 0; g < shape.gpus; ++g) {
    const auto first = placed.physical_to_logical.begin() + g * slots;
    duplicates += slots - static_cast<int>(std::set<int64_t>(first, first + slots).size());
  }
  return duplicates;
}

// Largest weight first into the lightest of `packs` that has room, ties to the lower index.
std::vector<std::vector<int>> PackGreedily(const std::vector<double>& weight, int packs) {
  const size_t room = weight.size() / packs;
  std::vector<std::vector<int>> content(packs);
  std::vector<double> load(packs);
  std::vector<int> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  if (room == 1) std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    int best = room == 1 ? static_cast<int>(i) : -1;
    for (int p = 0; p < packs && room > 1; ++p) {
      if (content[p].size() < room && (best < 0 || load[p] < load[best])) best = p;
    }
    content[best].push_back(order[i]);
    load[best] += weight[order[i]];
  }
  return content;
}

// The fullest GPU of DeepSeek's published algorithm, written here from its description.
double PublishedMaxLoad(StaticShape shape, const std::vector<double>& weight) {
  if (shape.groups % shape.nodes != 0) shape.groups = shape.nodes = 1;
  const int group_size = shape.experts / shape.groups;
  std::vector<double> groups(shape.groups);
  for (int e = 0; e < shape.experts; ++e) groups[e / group_size] += weight[e];
  double most = 0;
  for (const std::vector<int>& node : PackGreedily(groups, shape.nodes)) {
    std::vector<double> load, count;
    for (const int group : node) {
      for (int i = 0; i < group_size; ++i) load.push_back(weight[group * group_size + i]);
    }
    std::vector<int> replicas(load.size());
    std::iota(replicas.begin(), replicas.end(), 0);
    count.assign(load.size(), 1);
    while (static_cast<int>(replicas.size()) < shape.physical / shape.nodes) {
      int hottest = 0;
      for (size_t e = 1; e < load.size(); ++e) {
        if (load[e] / count[e] > load[hottest] / count[hottest]) hottest = static_cast<int>(e);
      }
      replicas.push_back(hottest);
      ++count[hottest];
    }
    std::vector<double> shares;
    shares.reserve(replicas.size());
    for (const int e : replicas) shares.push_back(load[e] / count[e]);
    for (const std::vector<int>& gpu : PackGreedily(shares, shape.gpus / shape.nodes)) {
      double sum = 0;
      for (const int replica : gpu) sum += shares[replica];
      most = std::max(most, sum);
    }
  }
  return most;
}

void ExpectWellFormed(const StaticShape& shape, const Placed& placed) {
  std::vector<int64_t> seen(shape.experts);
  for (const int64_t expert : placed.physical_to_logical) {
    ASSERT_GE(expert, 0);
    ASSERT_LT(expert, shape.experts);
    ++seen[expert];
  }
  EXPECT_EQ(seen, placed.count);
  EXPECT_GE(*std::min_element(seen.begin(), seen.end()), 1);
  if (shape.groups % shape.nodes != 0) return;
  const int group_size = shape.experts / shape.groups;
  std::vector<int> node_of(shape.groups, -1);
  for (int p = 0; p < shape.physical; ++p) {
    int& node = node_of[placed.physical_to_logical[p] / group_size];
    const int here = p / (shape.physical / shape.nodes);
    EXPECT_TRUE(node == -1 || node == here) << "a group spans two nodes";
    node = here;
  }
}

// 16 slots on 2 nodes of 4 GPUs; DeepSeek's README places these loads with 156 and 179.5 at most.
TEST(StaticPlacementTest, DoesBestOnThePublishedExample) {
  const StaticShape shape{.experts = 12, .physical = 16, .groups = 4, .nodes = 2, .gpus = 8};
  const std::vector<double> first{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const std::vector<double> second{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_DOUBLE_EQ(PublishedMaxLoad(shape, first), 156);
  EXPECT_DOUBLE_EQ(PublishedMaxLoad(shape, second), 179.5);

  const absl::StatusOr<Placed> one = Place(shape, first), two = Place(shape, second);
  ASSERT_TRUE(one.ok() && two.ok());
  ExpectWellFormed(shape, *one);
  ExpectWellFormed(shape, *two);
  // 151: groups 0 and 1 in one node, with 165 and 132 in halves: 104+40, 90+61, twice 82.5+66.
  EXPECT_DOUBLE_EQ(MaxLoad(shape, first, *one), 151);
  // Groups 2 and 3 must share a node, since else one carries 747 / 4 or more; there 179.5 is best.
  EXPECT_DOUBLE_EQ(MaxLoad(shape, second, *two), 179.5);
}

TEST(StaticPlacementTest, DoublesTheOneHotExpert) {
  // 100 in two halves beside 10 and 20: 60 and 70, which no other placement betters.
  const StaticShape shape{.experts = 3, .physical = 4, .groups = 1, .nodes = 1, .gpus = 2};
  const absl::StatusOr<Placed> placed = Place(shape, {100, 10, 20});
  ASSERT_TRUE(placed.ok());
  EXPECT_THAT(placed->count, ElementsAre(2, 1, 1));
  EXPECT_DOUBLE_EQ(MaxLoad(shape, {100, 10, 20}, *placed), 70);
}

TEST(StaticPlacementTest, RepeatsAnExpertOnOneGpuRatherThanBeWorseThanPublished) {
  // Without duplicates the best of [10, 20, 30, 40] on 2 x 3 slots is 55, with them 50.
  const StaticShape shape{.experts = 4, .physical = 6, .groups = 2, .nodes = 1, .gpus = 2};
  const absl::StatusOr<Placed> placed = Place(shape, {10, 20, 30, 40});
  ASSERT_TRUE(placed.ok());
  EXPECT_DOUBLE_EQ(MaxLoad(shape, {10, 20, 30, 40}, *placed), 50);
}

TEST(StaticPlacementTest, FillsMoreSlotsThanExpertsTimesGpus) {
  const StaticShape shape{.experts = 2, .physical = 12, .groups = 1, .nodes = 1, .gpus = 2};
  const absl::StatusOr<Placed> placed = Place(shape, {3, 1});
  ASSERT_TRUE(placed.ok());
  ExpectWellFormed(shape, *placed);
  EXPECT_LE(MaxLoad(shape, {3, 1}, *placed), PublishedMaxLoad(shape, {3, 1}) * (1 + 1e-12));
}

TEST(StaticPlacementTest, PlacesExpertsWithoutAnyLoad) {
  const StaticShape shape{.experts = 8, .physical = 12, .groups = 2, .nodes = 2, .gpus = 4};
  const absl::StatusOr<Placed> placed = Place(shape, std::vector<double>(8, 0));
  ASSERT_TRUE(placed.ok());
  ExpectWellFormed(shape, *placed);
  EXPECT_EQ(Duplicates(shape, *placed), 0);
}

TEST(StaticPlacementTest, NamesWhatIsWrong) {
  const auto message = [](const StaticShape& shape, const std::vector<double>& weight) {
    return std::string(Place(shape, weight).status().message());
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const StaticShape good{.experts = 2, .physical = 2, .groups = 1, .nodes = 1, .gpus = 2};
  EXPECT_THAT(message(good, {1, -2}), HasSubstr("expert 1: expected a finite load >= 0, got -2"));
  EXPECT_THAT(message(good, {nan, 1}), HasSubstr("expert 0"));
  EXPECT_THAT(message(good, {1e308, 1e308}), HasSubstr("overflows"));
  EXPECT_THAT(message({.experts = 4, .physical = 7, .groups = 2, .nodes = 2, .gpus = 4}, {}),
              HasSubstr("7 replicas do not divide evenly over 4 GPUs"));
  EXPECT_THAT(message({.experts = 4, .physical = 3, .groups = 1, .nodes = 1, .gpus = 3}, {}),
              HasSubstr("num_replicas: expected at least the 4 experts, got 3"));
  EXPECT_THAT(message({.experts = 5, .physical = 8, .groups = 2, .nodes = 2, .gpus = 4}, {}),
              HasSubstr("5 experts do not divide evenly into 2 groups"));
  EXPECT_THAT(message({.experts = 4, .physical = 6, .groups = 2, .nodes = 2, .gpus = 3}, {}),
              HasSubstr("3 GPUs do not divide evenly over 2 nodes"));
  EXPECT_THAT(message({.experts = 0, .physical = 6, .groups = 2, .nodes = 2, .gpus = 3}, {}),
              HasSubstr("experts: expected >= 1, got 0"));
}

TEST(StaticPlacementTest, IsNeverWorseThanPublishedAndPlacesEveryExpert) {
  std::mt19937 random(20);
  const auto draw = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  int better = 0, apart = 0;
  constexpr int kCases = 600;
  for (int i = 0; i < kCases; ++i) {
    StaticShape shape;
    shape.nodes = draw(1, 4);
    shape.gpus = shape.nodes * draw(1, 4);
    shape.groups = draw(0, 3) == 0 ? 1 : shape.nodes * draw(1, 3);
    shape.experts = shape.groups * draw(1, 6);
    const int least = (shape.experts + shape.gpus - 1) / shape.gpus;
    shape.physical = shape.gpus * draw(least, least + 3);
    std::vector<double> weight(shape.experts);
    const int kind = draw(0, 2);
    for (double& w : weight) {
      w = kind == 0   ? draw(0, 3)
          : kind == 1 ? draw(0, 1000)
                      : std::floor(std::exp(draw(0, 90) / 10.0));
    }
    const absl::StatusOr<Placed> placed = Place(shape, weight);
    ASSERT_TRUE(placed.ok()) << placed.status();
    ExpectWellFormed(shape, *placed);
    const double ours = MaxLoad(shape, weight, *placed),
                 published = PublishedMaxLoad(shape, weight);
    ASSERT_LE(ours, published * (1 + 1e-9)) << "case " << i;
    better += ours < published * (1 - 1e-9);
    apart += Duplicates(shape, *placed) == 0;

    const absl::StatusOr<Placed> again = Place(shape, weight);
    ASSERT_EQ(again->physical_to_logical, placed->physical_to_logical);
  }
  EXPECT_GT(better, kCases / 4);
  EXPECT_GT(apart, kCases / 2);
}

}  // namespace
}  // namespace relibra

#include "planner_service/baseline/eplb.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace relibra {
namespace {

using ::testing::HasSubstr;

struct PublicCase {
  std::string name;
  std::vector<std::vector<float>> weights;  // [layers][experts]
  EplbShape shape;
  std::vector<std::vector<int32_t>> physical_to_logical;
  std::vector<std::vector<int32_t>> logical_count;
  std::vector<std::vector<double>> rank_load;  // empty: not recorded
};

std::vector<PublicCase> PublicCases() {
  std::ifstream file(RELIBRA_SOURCE_DIR "/tests/planner_service/baseline/data/eplb_public.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<PublicCase> cases;
  for (const auto& c : json) {
    cases.push_back({.name = c.at("name"),
                     .weights = c.at("weight"),
                     .shape = {.num_replicas = c.at("num_replicas"),
                               .num_groups = c.at("num_groups"),
                               .num_nodes = c.at("num_nodes"),
                               .num_gpus = c.at("num_gpus")},
                     .physical_to_logical = c.at("phy2log"),
                     .logical_count = c.at("logcnt"),
                     .rank_load = c.value("rank_load", std::vector<std::vector<double>>())});
  }
  return cases;
}

TEST(EplbTest, EqualsThePublicImplementationOnEveryRecordedMatrix) {
  const std::vector<PublicCase> cases = PublicCases();
  ASSERT_GE(cases.size(), 20u);
  for (const PublicCase& c : cases) {
    for (size_t l = 0; l < c.weights.size(); ++l) {
      SCOPED_TRACE(testing::Message() << c.name << ", layer " << l);
      const auto layer = RunEplb(c.weights[l], c.shape);
      ASSERT_TRUE(layer.ok()) << layer.status();
      EXPECT_EQ(layer->physical_to_logical, c.physical_to_logical[l]);
      EXPECT_EQ(layer->logical_count, c.logical_count[l]);
    }
  }
}

TEST(EplbTest, GivesTheGpusTheRecordedLoads) {
  for (const PublicCase& c : PublicCases()) {
    for (size_t l = 0; l < c.rank_load.size(); ++l) {
      SCOPED_TRACE(testing::Message() << c.name << ", layer " << l);
      const auto layer = RunEplb(c.weights[l], c.shape);
      ASSERT_TRUE(layer.ok()) << layer.status();
      const int a_gpu = c.shape.num_replicas / c.shape.num_gpus;
      for (int g = 0; g < c.shape.num_gpus; ++g) {
        double load = 0;
        for (int i = 0; i < a_gpu; ++i) {
          const int e = layer->physical_to_logical[g * a_gpu + i];
          load += static_cast<double>(c.weights[l][e]) / layer->logical_count[e];
        }
        EXPECT_NEAR(load, c.rank_load[l][g], 1e-9 * load);
      }
    }
  }
}

TEST(EplbTest, PlacesEveryExpertAsOftenAsItCountsAndKeepsGroupsInTheirNode) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int nodes = 1 << (random() % 3);
    const int gpus = nodes * (1 + static_cast<int>(random() % 4));
    const int groups = nodes * (1 + static_cast<int>(random() % 3));
    const int experts = std::lcm(groups, gpus) * (1 + static_cast<int>(random() % 2));
    const EplbShape shape{.num_replicas = experts + gpus * static_cast<int>(random() % 3),
                          .num_groups = groups,
                          .num_nodes = nodes,
                          .num_gpus = gpus};
    std::vector<float> weights(experts);
    for (float& w : weights) w = static_cast<float>(random() % 50);
    const auto layer = RunEplb(weights, shape);
    ASSERT_TRUE(layer.ok()) << layer.status();
    std::vector<int32_t> count(experts);
    std::vector<std::set<int>> nodes_of_group(groups);
    for (int i = 0; i < shape.num_replicas; ++i) {
      const int e = layer->physical_to_logical[i];
      ASSERT_GE(e, 0);
      ASSERT_LT(e, experts);
      ++count[e];
      nodes_of_group[e / (experts / groups)].insert(i / (shape.num_replicas / nodes));
    }
    EXPECT_EQ(count, layer->logical_count);
    EXPECT_GE(*std::min_element(count.begin(), count.end()), 1);
    for (const std::set<int>& of_group : nodes_of_group) EXPECT_EQ(of_group.size(), 1u);
  }
}

TEST(EplbTest, RefusesCountsThatDoNotDivide) {
  const auto message = [](int experts, const EplbShape& shape) {
    const std::vector<float> weights(experts, 1);
    return std::string(RunEplb(weights, shape).status().message());
  };
  EXPECT_THAT(message(4, {.num_replicas = 7, .num_groups = 2, .num_nodes = 2, .num_gpus = 4}),
              HasSubstr("num_replicas: 7"));
  EXPECT_THAT(message(4, {.num_replicas = 8, .num_groups = 3, .num_nodes = 1, .num_gpus = 4}),
              HasSubstr("num_groups, 3"));
  EXPECT_THAT(message(6, {.num_replicas = 8, .num_groups = 3, .num_nodes = 3, .num_gpus = 4}),
              HasSubstr("num_gpus: 4"));
  EXPECT_THAT(message(4, {.num_replicas = 2, .num_groups = 1, .num_nodes = 1, .num_gpus = 2}),
              HasSubstr("at least the 4 experts"));
  EXPECT_THAT(message(4, {.num_replicas = 4, .num_groups = 0, .num_nodes = 1, .num_gpus = 2}),
              HasSubstr("num_groups, 0"));
  EXPECT_THAT(message(4, {.num_replicas = 4, .num_groups = 1, .num_nodes = 0, .num_gpus = 2}),
              HasSubstr("num_nodes, 0"));
}

}  // namespace
}  // namespace relibra

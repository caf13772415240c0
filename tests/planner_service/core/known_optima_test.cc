// Small batches whose optima are known from exhaustive search (data/).

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/planner.h"

namespace relibra {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  Topology topology;
  Loads loads;
  json expect;
};

Case ReadCase(const std::filesystem::path& path) {
  const json file = json::parse(std::ifstream(path));
  const json& loads = file["loads"];
  const LoadShape shape{static_cast<int>(loads.size()), static_cast<int>(loads[0].size()),
                        static_cast<int>(loads[0][0].size()), file["num_experts"]};
  std::vector<uint32_t> counts;
  for (const json& micro_batch : loads) {
    for (const json& layer : micro_batch) {
      for (const json& rank : layer) {
        for (const json& count : rank) counts.push_back(count);
      }
    }
  }
  return {file["name"],
          {file["nodes"], file["gpus_per_node"], file["replica_slots"]},
          *Loads::FromCounts(shape, std::move(counts)),
          file["expect"]};
}

std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           RELIBRA_SOURCE_DIR "/tests/planner_service/core/data/" + folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

Plan PlanOf(const Case& c, std::optional<int64_t> max_moves) {
  PlanOptions options;
  options.bridges = 0;  // the optima are of plans whose replicas stay in their node
  options.max_moves = max_moves;
  const Placement current =
      LinearPlacement(c.topology, c.loads.shape().layers, c.loads.shape().experts);
  absl::StatusOr<Plan> plan = PlanStep(c.loads, c.topology, current, options, InOrder);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(CheckPlan(c.loads, c.topology, current, *plan).ok())
      << CheckPlan(c.loads, c.topology, current, *plan);
  return *std::move(plan);
}

// [M], the heaviest rank of each micro-batch of a layer, recomputed from the plan.
std::vector<int64_t> MaxLoads(const Case& c, const Plan& plan, int layer) {
  const LoadShape& shape = c.loads.shape();
  std::vector<int64_t> most;
  for (int m = 0; m < shape.micro_batches; ++m) {
    std::vector<int64_t> load(c.topology.num_ranks());
    for (int s = 0; s < shape.sources; ++s) {
      for (int e = 0; e < shape.experts; ++e) {
        load[plan.layers[layer].home_rank[e]] += c.loads.At(m, layer)[s * shape.experts + e];
      }
    }
    for (const Replica& r : plan.layers[layer].replicas[m]) {
      load[plan.layers[layer].home_rank[r.expert]] -= r.tokens;
      load[r.rank] += r.tokens;
    }
    most.push_back(*std::max_element(load.begin(), load.end()));
  }
  return most;
}

class KnownOptima : public testing::TestWithParam<std::string> {};

TEST_P(KnownOptima, AreReachedWithFreeMovesAndWithHomesFixed) {
  const Case c = ReadCase(GetParam());
  const Plan fixed = PlanOf(c, 0);
  EXPECT_NEAR(fixed.summary.imbalance_before, c.expect["imbalance_before"], 1e-5);
  EXPECT_LE(fixed.summary.imbalance_after,
            c.expect["optimum_without_reordering"].get<double>() + 1e-5);
  const Plan free = PlanOf(c, std::nullopt);
  EXPECT_NEAR(free.summary.imbalance_after, c.expect["optimum"], 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Cases, KnownOptima, testing::ValuesIn(FilesOf("cases")), TestName);

class ExhaustiveOptima : public testing::TestWithParam<std::string> {};

TEST_P(ExhaustiveOptima, HomesFixedReachTheLeastMaxLoadWithFewCopies) {
  const Case c = ReadCase(GetParam());
  const Plan plan = PlanOf(c, 0);
  for (int l = 0; l < c.loads.shape().layers; ++l) {
    const std::vector<int64_t> least = c.expect["replicate_only"]["max_load"][l];
    EXPECT_EQ(MaxLoads(c, plan, l), least) << "layer " << l;
    const std::vector<size_t> copies = c.expect["replicate_only"]["min_copies"][l];
    for (size_t m = 0; m < copies.size(); ++m) {
      EXPECT_LE(plan.layers[l].replicas[m].size(), copies[m] + 1) << "layer " << l << ", " << m;
    }
  }
}

TEST_P(ExhaustiveOptima, FreeMovesReachTheLeastSumOfMaxLoads) {
  const Case c = ReadCase(GetParam());
  const Plan plan = PlanOf(c, std::nullopt);
  for (int l = 0; l < c.loads.shape().layers; ++l) {
    int64_t sum = 0;
    for (int64_t load : MaxLoads(c, plan, l)) sum += load;
    EXPECT_EQ(sum, c.expect["reorder_and_replicate"]["sum_max_load"][l]) << "layer " << l;
    if (c.expect["reorder_and_replicate"]["min_cross_node_moves"][l] == 0) {
      int64_t crossing = 0;
      for (const Move& move : plan.layers[l].moves) {
        crossing += c.topology.NodeOf(move.from_rank) != c.topology.NodeOf(move.to_rank);
      }
      EXPECT_EQ(crossing, 0) << "layer " << l;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ExhaustiveOptima, testing::ValuesIn(FilesOf("exhaustive")),
                         TestName);

}  // namespace
}  // namespace relibra

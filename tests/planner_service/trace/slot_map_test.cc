#include "planner_service/trace/slot_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "planner_service/trace/slot_yaml.h"

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The plan of EPLB's own README for its first layer: 12 experts, 8 GPUs of 2 slots.
SlotMap ReadmeMap() {
  return {.layer_ids = {0}, .rows = {{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}}};
}

TEST(SlotMap, EveryFormOfEplbsReadmePlanIsTheSamePlan) {
  const char* sglang = R"({"physical_to_logical_map": [[5,6,5,7,8,4,3,4,10,9,10,2,0,1,11,1]]})";
  EXPECT_EQ(*ParseSglangSlots(sglang, "f"), ReadmeMap());
  const char* tensor_rt =
      "num_slots: 16\n"
      "initial_global_assignments:\n"
      "  0: [5,6,5,7,8,4,3,4,10,9,10,2,0,1,11,1]\n"
      "layer_updates_per_iter: 0\n";
  EXPECT_EQ(*ParseTensorRtSlots(tensor_rt, "f"), ReadmeMap());
}

TEST(SlotMap, AscendsOwnTestFileIsRead) {
  const char* text = R"({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": 2,
      "device_list": [{"device_id": 0, "device_expert": [7, 2, 0, 3, 5]},
                      {"device_id": 1, "device_expert": [6, 1, 4, 7, 2]}]}]})";
  EXPECT_EQ(*ParseAscendSlots(text, "f"),
            (SlotMap{.layer_ids = {0}, .rows = {{7, 2, 0, 3, 5, 6, 1, 4, 7, 2}}}));
}

TEST(SlotMap, YamlMaySpreadItsListsOverLines) {
  const char* text =
      "# written by hand\n"
      "initial_global_assignments:\n"
      "  3: [0, 1,   # first node\n"
      "      2, 3]\n"
      "\n"
      "  4:\n"
      "    - 3\n"
      "    - 2\n"
      "    - 1\n"
      "    - 0\n"
      "num_slots: 4\n"
      "ep_size: 2\n";
  EXPECT_EQ(*ParseTensorRtSlots(text, "f"),
            (SlotMap{.layer_ids = {3, 4}, .rows = {{0, 1, 2, 3}, {3, 2, 1, 0}}}));
}

TEST(SlotMap, WhatIsWrittenIsReadBack) {
  const SlotMap map = {.layer_ids = {0, 1}, .rows = {{0, 1, 1, 2}, {2, 1, 0, 0}}};
  EXPECT_EQ(*ParseSglangSlots(SglangJson(map), "f"), map);
  EXPECT_EQ(*ParseTensorRtSlots(TensorRtYaml(map), "f"), map);
  EXPECT_EQ(*ParseAscendSlots(AscendJson(map, 2), "f"), map);
}

TEST(SlotMap, CountsOfSeveralStepsAreSummed) {
  using Counts = std::vector<std::vector<uint32_t>>;
  EXPECT_EQ(*ParseSglangCounts(R"({"logical_count": [[1, 2], [3, 4]]})", "f"),
            (Counts{{1, 2}, {3, 4}}));
  EXPECT_EQ(*ParseSglangCounts(R"({"logical_count": [[[1, 2]], [[3, 4]]]})", "f"),
            (Counts{{4, 6}}));
}

struct Case {
  const char* text;
  const char* message;
};

void ExpectRefused(const absl::Status& status, const char* message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("f: "), HasSubstr(message)));
}

TEST(SlotMap, BadSglangFilesAreNamed) {
  for (const Case& c : std::vector<Case>{
           {"[]", "expected a JSON object"},
           {"{}", "expected a field \"physical_to_logical_map\""},
           {R"({"physical_to_logical_map": [[0]], "extra": 1})", "unknown field \"extra\""},
           {R"({"physical_to_logical_map": []})", "at least one layer"},
           {R"({"physical_to_logical_map": [[0, 1], [0]]})", "map[1]: expected 2 entries"},
           {R"({"physical_to_logical_map": [[0, -1]]})", "map[0][1]: expected an integer from 0"},
           {R"({"physical_to_logical_map": [[0, 1.5]]})", "map[0][1]: expected an integer"}}) {
    ExpectRefused(ParseSglangSlots(c.text, "f").status(), c.message);
  }
  for (const Case& c : std::vector<Case>{
           {R"({"logical_count": [[1], [-1]]})", "logical_count[1][0]: expected an integer"},
           {R"({"logical_count": [[[1, 2]], [[3]]]})", "logical_count[1]: expected [1, 2] counts"},
           {R"({"logical_count": [[[4294967295]], [[1]]]})", "does not fit into 32 bits"}}) {
    ExpectRefused(ParseSglangCounts(c.text, "f").status(), c.message);
  }
}

TEST(SlotMap, BadYamlIsNamedByItsLine) {
  for (const Case& c : std::vector<Case>{
           {"", "expected initial_global_assignments"},
           {"num_slots: x\n", "line 1: num_slots: expected an integer"},
           {"what: 3\n", "line 1: expected num_slots"},
           {"num_slots: 2\n  0: [1, 2]\n", "line 2: expected no indented line here"},
           {"initial_global_assignments:\n  a: [1]\n", "line 2: expected a layer number"},
           {"initial_global_assignments:\n  0: {1: 2}\n", "line 2: expected '['"},
           {"initial_global_assignments:\n  0: [1, -2]\n", "line 2: expected an expert from 0"},
           {"initial_global_assignments:\n  0: [1, 2\n", "expected ']' before the end"},
           {"initial_global_assignments:\n  1: [1]\n  0: [1]\n", "expected a layer above 1"},
           {"num_slots: 3\ninitial_global_assignments:\n  0: [1, 2]\n",
            "layer 0: expected 3 slots, got 2"},
           {"initial_global_assignments:\n  0: [1, 2]\nnum_slots: 3\n", "expected 3"},
           {"initial_global_assignments:\n  0: &anchor [1]\n", "expected '['"}}) {
    absl::StatusOr<SlotMap> map = ParseTensorRtSlots(c.text, "f");
    ExpectRefused(map.status(), c.message);
  }
}

TEST(SlotMap, BadAscendFilesAreNamed) {
  const std::string device = R"({"device_id": 0, "device_expert": [0, 1]})";
  auto layer = [](const std::string& devices, int count) {
    return R"({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": )" +
           std::to_string(count) + R"(, "device_list": [)" + devices + "]}]}";
  };
  ExpectRefused(ParseAscendSlots(layer(device, 2), "f").status(),
                "layer_list[0].device_list: expected device_count = 2 devices, got 1");
  ExpectRefused(ParseAscendSlots(layer(device + "," + device, 2), "f").status(),
                "device_list[1].device_id: expected 1, got 0");
  ExpectRefused(
      ParseAscendSlots(layer(device + R"(,{"device_id": 1, "device_expert": [2]})", 2), "f")
          .status(),
      "device_list[1].device_expert: expected 2 experts as on device 0, got 1");
  ExpectRefused(ParseAscendSlots(R"({"moe_layer_count": 2, "layer_list": [{}]})", "f").status(),
                "expected moe_layer_count = 2 layers, got 1");
  ExpectRefused(ParseAscendSlots(R"({"moe_layer_count": 1, "layer_list": [3]})", "f").status(),
                "layer_list[0]: expected an object with a field \"layer_id\"");
}

TEST(SlotMap, HomesAreFoundAmongTheHolders) {
  // Expert 0 is on both ranks; only rank 1 may be its home, since 1 and 2 are nowhere else.
  const SlotMap map = {.layer_ids = {0}, .rows = {{0, 1, 2, 3, 0, 3}}};
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  EXPECT_THAT(HomesOfSlots(map, topology, 4, "f")->front(), ElementsAre(1, 0, 0, 1));
}

TEST(SlotMap, HomesThatAPlanHadAreFoundAgainOrOthersAsGood) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Topology topology{.nodes = 1,
                            .gpus_per_node = 1 + static_cast<int>(random() % 5),
                            .replica_slots = static_cast<int>(random() % 3)};
    const int experts = topology.num_ranks() * (1 + static_cast<int>(random() % 4));
    Plan plan{.topology = topology, .layers = {}, .summary = {}, .digest = ""};
    LayerPlan& layer = plan.layers.emplace_back();
    for (int e = 0; e < experts; ++e) layer.home_rank.push_back(e % topology.num_ranks());
    std::shuffle(layer.home_rank.begin(), layer.home_rank.end(), random);
    layer.replicas.emplace_back();
    for (int rank = 0; rank < topology.num_ranks(); ++rank) {
      for (int slot = 0; slot < topology.replica_slots; ++slot) {
        const int e = static_cast<int>(random() % experts);
        if (layer.home_rank[e] != rank) {
          layer.replicas[0].push_back({.expert = e, .rank = rank, .slot = slot, .tokens = 1});
        }
      }
    }
    const std::vector<uint32_t> ids = {9};
    const SlotMap homes_alone = SlotsOfPlan(plan, ids, -1);
    EXPECT_EQ(HomesOfSlots(homes_alone, topology, experts, "f")->front(), layer.home_rank);
    const SlotMap with_replicas = SlotsOfPlan(plan, ids, 0);
    const absl::StatusOr<Placement> homes = HomesOfSlots(with_replicas, topology, experts, "f");
    ASSERT_TRUE(homes.ok()) << homes.status();
    const int slots = experts / topology.num_ranks() + topology.replica_slots;
    std::vector<int> on(topology.num_ranks());
    for (int e = 0; e < experts; ++e) {
      const int rank = homes->front()[e];
      ++on[rank];
      const auto first = with_replicas.rows[0].begin() + rank * slots;
      EXPECT_NE(std::find(first, first + slots, e), first + slots);
    }
    for (int count : on) EXPECT_EQ(count, experts / topology.num_ranks());
  }
}

TEST(SlotMap, MapsWithoutHomesAreNamed) {
  const Topology topology{.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  auto refused = [&](std::vector<int32_t> row) {
    return std::string(HomesOfSlots({.layer_ids = {6}, .rows = {std::move(row)}}, topology, 4, "f")
                           .status()
                           .message());
  };
  EXPECT_THAT(refused({0, 1, 2}), HasSubstr("f: layer 6: expected slots that divide over 2"));
  EXPECT_THAT(refused({0, 1, 2, 4}), HasSubstr("slot 3: expected an expert from 0 to 3, got 4"));
  EXPECT_THAT(refused({0, 1, 2, 2}), HasSubstr("expert 3 is in no slot"));
  EXPECT_THAT(refused({0, 1, 2, 3, 3, 3}), HasSubstr("no rank is left to be home to expert 2"));
}

}  // namespace
}  // namespace relibra

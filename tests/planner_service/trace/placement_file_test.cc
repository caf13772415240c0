#include "planner_service/trace/placement_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner_service/trace/plan_file.h"
#include "planner_service/trace/plan_message.h"

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Topology kTopology{.nodes = 2, .gpus_per_node = 1, .replica_slots = 1};

absl::StatusOr<Placement> Parse(absl::string_view text) {
  return ParsePlacement(text, "now.json", kTopology, {3, 5}, 4);
}

Plan SmallPlan() {
  Plan plan;
  plan.topology = kTopology;
  plan.layers.resize(2);
  plan.layers[0].home_rank = {0, 1, 0, 1};
  plan.layers[1].home_rank = {1, 1, 0, 0};
  return plan;
}

TEST(PlacementFile, ThePlainFormIsReadWithAndWithoutLayerNumbers) {
  const Placement expected = {{0, 0, 1, 1}, {1, 0, 0, 1}};
  for (const char* text : {R"({"homeRank": [[0,0,1,1], [1,0,0,1]]})",
                           R"({"layerIds": [3, 5], "homeRank": [[0,0,1,1], [1,0,0,1]]})"}) {
    absl::StatusOr<Placement> placement = Parse(text);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(*placement, expected);
  }
  EXPECT_EQ(*Parse(PlacementToJson(expected, {3, 5})), expected);
}

TEST(PlacementFile, APlansHomesAreAPlacement) {
  const v1::Plan message = PlanMessage(SmallPlan(), {.job = "demo"}, {3, 5});
  for (const std::string& bytes : {PlanToJson(message), message.SerializeAsString()}) {
    absl::StatusOr<Placement> placement = Parse(bytes);
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(*placement, (Placement{{0, 1, 0, 1}, {1, 1, 0, 0}}));
  }
}

TEST(PlacementFile, WhatDoesNotFitTheJobIsNamed) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {"", "not a plan"},
           {"{", "not JSON"},
           {R"({"homes": []})", "expected a plan (field \"layers\") or a placement"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,1]], "slots": 2})", "unknown field \"slots\""},
           {R"({"homeRank": [[0]], "homeRank": [[0]]})", "stands twice"},
           {R"({"homeRank": 3})", "homeRank: expected an array of arrays, got an integer"},
           {R"({"homeRank": [[0,0,1,1]]})", "expected 2 layers, got 1"},
           {R"({"homeRank": [[0,0,1,1],[0,1]]})", "homeRank[1]: expected 4 experts, got 2"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,2]]})", "homeRank[1][3]: expected 0 to 1, got 2"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,-1]]})", "homeRank[1][3]: expected an integer"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,0.5]]})", "homeRank[1][3]: expected an integer"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,"1"]]})", "got a string"},
           {R"({"homeRank": [[0,0,1,1],[0,0,0,1]]})",
            "homeRank[1]: expected 2 experts on every rank, got 3 on rank 0"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,1]], "layerIds": [3]})", "layerIds: expected 2"},
           {R"({"homeRank": [[0,0,1,1],[0,0,1,1]], "layerIds": [3, 4]})",
            "expected numbers 3,5, got 3,4"}}) {
    absl::StatusOr<Placement> placement = Parse(c.text);
    EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(placement.status().message()),
                AllOf(StartsWith("now.json: "), HasSubstr(c.message)));
  }
}

TEST(PlacementFile, APlanOfAnotherShapeIsRefused) {
  Plan plan = SmallPlan();
  plan.topology = {.nodes = 1, .gpus_per_node = 2, .replica_slots = 1};
  EXPECT_THAT(std::string(Parse(PlanToJson(PlanMessage(plan, {}, {3, 5}))).status().message()),
              HasSubstr("topology: expected 2 nodes x 1 GPUs, got 1 x 2"));
  EXPECT_THAT(
      std::string(Parse(PlanToJson(PlanMessage(SmallPlan(), {}, {3, 6}))).status().message()),
      HasSubstr("expected numbers 3,5, got 3,6"));
}

}  // namespace
}  // namespace relibra

// Planning over a real socket: compositions, counts, uploads, repeated requests, homes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::SequencePlacement Place(const std::string& sequence, uint32_t micro_batch, uint32_t rank) {
  v1::SequencePlacement placement;
  placement.set_sequence_id(sequence);
  placement.set_micro_batch(micro_batch);
  placement.set_source_rank(rank);
  return placement;
}

v1::PlanStepRequest Compose(const v1::StepKey& key, uint32_t num_micro_batches,
                            const std::vector<v1::SequencePlacement>& placements) {
  v1::PlanStepRequest request;
  *request.mutable_key() = key;
  request.mutable_composition()->set_num_micro_batches(num_micro_batches);
  for (const auto& placement : placements)
    *request.mutable_composition()->add_sequences() = placement;
  return request;
}

// What a pass was planned from: [entry][source rank * 8 + expert].
std::vector<std::vector<uint32_t>> LoadsOf(TestPlanner& planner, const v1::StepKey& key,
                                           const std::string& group = "") {
  grpc::ClientContext call;
  v1::GetLoadsRequest request;
  *request.mutable_key() = key;
  request.set_ep_group(group);
  auto reader = planner.stub().GetLoads(&call, request);
  std::vector<std::vector<uint32_t>> loads;
  v1::LoadCounts part;
  while (reader->Read(&part)) {
    EXPECT_EQ(part.first_entry(), loads.size());
    for (const v1::LayerLoads& entry : part.entries()) {
      loads.emplace_back(entry.counts().begin(), entry.counts().end());
    }
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return loads;
}

v1::Plan WholePlan(TestPlanner& planner, const v1::StepKey& key, const std::string& pass = "",
                   const std::string& group = "") {
  v1::GetPlanRequest request;
  *request.mutable_key() = key;
  request.set_pass(pass);
  request.set_ep_group(group);
  request.set_all_splits(true);
  v1::Plan plan;
  const grpc::Status status = planner.GetPlan(request, &plan);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return plan;
}

TEST(PlanStepTest, TurnsACompositionIntoLoads) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  // Tokens [layer 1 ids, layer 2 ids]: a: (0,1 | 2,3), (0,1 | 4,5); b: (6,7 | 2,3).
  ASSERT_TRUE(planner
                  .Send(Key("demo", 1),
                        {Record("a", 0, {0, 1, 2, 3, 0, 1, 4, 5}), Record("b", 0, {6, 7, 2, 3})})
                  .ok());
  v1::PlanStepResponse response;
  ASSERT_TRUE(
      planner.Plan(Compose(Key("demo", 1), 2, {Place("a", 0, 1), Place("b", 1, 3)}), &response)
          .ok());
  ASSERT_EQ(response.plans_size(), 1);
  EXPECT_EQ(response.plans(0).summary().tokens(), 12);
  EXPECT_EQ(response.plans(0).summary().missing_share(), 0);
  const auto loads = LoadsOf(planner, Key("demo", 1));
  ASSERT_EQ(loads.size(), 4);  // [micro-batch][layer]
  std::vector<std::vector<uint32_t>> expected(4, std::vector<uint32_t>(32));
  expected[0][8 + 0] = expected[0][8 + 1] = 2;  // a, layer 1, rank 1
  expected[1][8 + 2] = expected[1][8 + 3] = 1;  // a, layer 2
  expected[1][8 + 4] = expected[1][8 + 5] = 1;
  expected[2][24 + 6] = expected[2][24 + 7] = 1;  // b, layer 1, rank 3
  expected[3][24 + 2] = expected[3][24 + 3] = 1;
  EXPECT_EQ(loads, expected);
}

TEST(PlanStepTest, PlacesEveryTokenOfAReplicatedExpert) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::LoadCounts counts = SmallCounts(3, 2);
  for (v1::LayerLoads& entry : *counts.mutable_entries()) entry.set_counts(5, 1000);
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), counts).ok());
  const v1::Plan plan = WholePlan(planner, Key("demo", 1));
  ASSERT_EQ(plan.layers_size(), 2);
  int replicated = 0;
  for (int l = 0; l < 2; ++l) {
    EXPECT_EQ(plan.layers(l).layer(), l + 1);
    EXPECT_EQ(plan.layers(l).home_rank_size(), 8);
    for (int m = 0; m < 2; ++m) {
      for (const v1::Replica& replica : plan.layers(l).micro_batches(m).replicas()) {
        ++replicated;
        for (uint32_t s = 0; s < 4; ++s) {
          EXPECT_EQ(SplitTokensOf(plan, l, m, s, replica.expert()),
                    counts.entries(m * 2 + l).counts(static_cast<int>(s * 8 + replica.expert())));
        }
      }
    }
  }
  EXPECT_GT(replicated, 0);
}

TEST(PlanStepTest, AsksForRecordsThatAreMissing) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
  const grpc::Status status =
      planner.Plan(Compose(Key("demo", 1), 1,
                           {Place("a", 0, 0), Place("p", 0, 0), Place("q", 0, 0), Place("r", 0, 0),
                            Place("s", 0, 0), Place("t", 0, 0), Place("u", 0, 0)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(
      status.error_message(),
      HasSubstr("6 of 7 sequences have no records: \"p\", \"q\", \"r\", \"s\", \"t\", ..."));
  EXPECT_THAT(planner.Status("demo").last_error(), HasSubstr("6 of 7 sequences"));
  // The step is not sealed: the records may still come.
  EXPECT_TRUE(planner.Send(Key("demo", 1), {Record("p", 0, {0, 1, 2, 3})}).ok());
}

TEST(PlanStepTest, SpreadsMissingTokensByTheLayersMean) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("demo");
  spec.set_max_missing_share(0.5);
  ASSERT_TRUE(planner.Register(spec).ok());
  // Four tokens recorded of which layer 1 went to experts 0, 1 and layer 2 to 2, 3; tokens 4 and 5
  // of a sequence of 7 are missing (the 7th never has a route).
  v1::RoutingRecord record = Record("a", 0, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  record.set_sequence_tokens(7);
  ASSERT_TRUE(planner.Send(Key("demo", 1), {record}).ok());
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.Plan(Compose(Key("demo", 1), 1, {Place("a", 0, 0)}), &response).ok());
  EXPECT_DOUBLE_EQ(response.plans(0).summary().missing_share(), 2.0 / 6);
  const auto loads = LoadsOf(planner, Key("demo", 1));
  std::vector<uint32_t> layer1(32);
  std::vector<uint32_t> layer2(32);
  layer1[0] = layer1[1] = layer2[2] = layer2[3] = 6;  // 4 recorded, 2 of the missing 4 pairs
  EXPECT_THAT(loads, ElementsAre(layer1, layer2));
}

TEST(PlanStepTest, TakesRowsBelowZeroForMissingNotForExpertZero) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("demo");
  spec.set_max_missing_share(0.9);
  spec.mutable_model()->set_top_k(2);
  ASSERT_TRUE(planner.Register(spec).ok());
  v1::RoutingRecord record = Record("a", 0, {4, 5, 6, 7, 0xff, 0xff, 0xff, 0xff});
  record.mutable_ids()->set_id_type(v1::ID_TYPE_INT8);
  ASSERT_TRUE(planner.Send(Key("demo", 1), {record}).ok());
  ASSERT_TRUE(planner.Plan(Compose(Key("demo", 1), 1, {Place("a", 0, 0)})).ok());
  const auto loads = LoadsOf(planner, Key("demo", 1));
  EXPECT_EQ(loads[0][0], 0);
  EXPECT_EQ(loads[0][4], 2);
  EXPECT_EQ(loads[0][5], 2);
}

TEST(PlanStepTest, RefusesAStepOfWhichTooMuchIsMissing) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::RoutingRecord record = Record("a", 0, {0, 1, 2, 3});
  record.set_sequence_tokens(11);
  ASSERT_TRUE(planner.Send(Key("demo", 1), {record}).ok());
  const grpc::Status status = planner.Plan(Compose(Key("demo", 1), 1, {Place("a", 0, 0)}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("18 of 20"));
  EXPECT_THAT(status.error_message(), HasSubstr("max_missing_share is 0.05"));
}

TEST(PlanStepTest, CountsPaddingRowsOnlyWhenTheyRun) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
  v1::SequencePlacement padded = Place("a", 0, 0);
  padded.set_padding_rows(3);
  ASSERT_TRUE(planner.Plan(Compose(Key("demo", 1), 1, {padded})).ok());
  // arange(3 rows x 2 layers x 2) % 8: row 0: 0,1 | 2,3; row 1: 4,5 | 6,7; row 2: 0,1 | 2,3.
  std::vector<uint32_t> layer1(32);
  std::vector<uint32_t> layer2(32);
  layer1[0] = layer1[1] = 3;
  layer1[4] = layer1[5] = 1;
  layer2[2] = layer2[3] = 3;
  layer2[6] = layer2[7] = 1;
  EXPECT_THAT(LoadsOf(planner, Key("demo", 1)), ElementsAre(layer1, layer2));
}

TEST(PlanStepTest, PlansEmptyMicroBatchesAndSingleRanks) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("one");
  spec.mutable_topology()->set_nodes(1);
  spec.mutable_topology()->set_gpus_per_node(1);
  spec.mutable_topology()->set_replica_slots(0);
  ASSERT_TRUE(planner.Register(spec).ok());
  ASSERT_TRUE(planner.Send(Key("one", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
  v1::PlanStepResponse response;
  const grpc::Status status =
      planner.Plan(Compose(Key("one", 1), 3, {Place("a", 1, 0)}), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(WholePlan(planner, Key("one", 1)).layers(0).micro_batches_size(), 3);
}

TEST(PlanStepTest, TreatsEveryExpertOfEveryEpGroupApart) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("demo");
  for (uint32_t g = 0; g < 4; ++g) {
    v1::EpGroup& group = *spec.add_ep_groups();
    group.set_name("stage" + std::to_string(g / 2) + "-dp" + std::to_string(g % 2));
    for (uint32_t r = 0; r < 4; ++r) group.add_global_ranks(4 * g + r);
    group.add_layer_ids(1 + g / 2);
    group.set_data_parallel_index(g % 2);
  }
  ASSERT_TRUE(planner.Register(spec).ok());
  ASSERT_TRUE(
      planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3}), Record("b", 0, {4, 5, 6, 7})})
          .ok());
  v1::SequencePlacement b = Place("b", 0, 2);
  b.set_data_parallel_index(1);
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.Plan(Compose(Key("demo", 1), 1, {Place("a", 0, 0), b}), &response).ok());
  ASSERT_EQ(response.plans_size(), 4);
  EXPECT_EQ(response.plans(3).ep_group(), "stage1-dp1");
  std::vector<uint32_t> expected(32);
  expected[16 + 6] = expected[16 + 7] = 1;  // b in layer 2 from rank 2
  EXPECT_THAT(LoadsOf(planner, Key("demo", 1), "stage1-dp1"), ElementsAre(expected));
  EXPECT_EQ(WholePlan(planner, Key("demo", 1), "", "stage1-dp0").layers(0).layer(), 2);
  // A group must be named where there are several.
  v1::GetPlanRequest request;
  *request.mutable_key() = Key("demo", 1);
  v1::Plan plan;
  EXPECT_EQ(planner.GetPlan(request, &plan).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_ep_group("stage9");
  const grpc::Status unknown = planner.GetPlan(request, &plan);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), HasSubstr("stage9"));
}

struct BadRequest {
  const char* named;
  std::function<void(v1::PlanStepRequest&)> spoil;
};

TEST(PlanStepTest, NamesWhatIsWrongWithAComposition) {
  const BadRequest kBadRequests[] = {
      {"composition.num_micro_batches",
       [](auto& r) { r.mutable_composition()->set_num_micro_batches(0); }},
      {"composition.num_micro_batches",
       [](auto& r) { r.mutable_composition()->set_num_micro_batches(4294967295U); }},
      {"composition.sequences[1].sequence_id: \"a\" is already placed by entry 0",
       [](auto& r) { *r.mutable_composition()->add_sequences() = Place("a", 1, 0); }},
      {"composition.sequences[0].sequence_id",
       [](auto& r) { r.mutable_composition()->mutable_sequences(0)->set_sequence_id(""); }},
      {"composition.sequences[0].micro_batch: expected less than num_micro_batches 2, got 2",
       [](auto& r) { r.mutable_composition()->mutable_sequences(0)->set_micro_batch(2); }},
      {"composition.sequences[0].source_rank: expected less than 4, got 4",
       [](auto& r) { r.mutable_composition()->mutable_sequences(0)->set_source_rank(4); }},
      {"composition.sequences[0].data_parallel_index: expected less than 1, got 1",
       [](auto& r) { r.mutable_composition()->mutable_sequences(0)->set_data_parallel_index(1); }},
      {"composition.sequences[0].padding_rows",
       [](auto& r) { r.mutable_composition()->mutable_sequences(0)->set_padding_rows(1 << 30); }},
      {"pass: expected 1 to 63 of [a-z0-9-]", [](auto& r) { r.set_pass("Up date"); }},
      {"options.move_cost", [](auto& r) { r.mutable_options()->set_move_cost(-1); }},
      {"loads: expected composition", [](auto& r) { r.clear_composition(); }},
      {"uploaded_counts", [](auto& r) { r.set_uploaded_counts(false); }},
  };
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
  for (const BadRequest& bad : kBadRequests) {
    v1::PlanStepRequest request = Compose(Key("demo", 1), 2, {Place("a", 0, 0)});
    bad.spoil(request);
    const grpc::Status status = planner.Plan(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
}

TEST(PlanStepTest, NamesLayerMicroBatchRankAndExpertOfBadCounts) {
  const BadRequest kBadRequests[] = {
      {"counts.num_layers: expected 2", [](auto& r) { r.mutable_counts()->set_num_layers(3); }},
      {"counts.num_source_ranks: expected 4",
       [](auto& r) { r.mutable_counts()->set_num_source_ranks(8); }},
      {"counts.num_experts: expected 8", [](auto& r) { r.mutable_counts()->set_num_experts(16); }},
      {"counts.entries: expected 4",
       [](auto& r) { r.mutable_counts()->mutable_entries()->RemoveLast(); }},
      {"layer 2, micro-batch 1: expected 4 x 8 = 32 counts, got 33",
       [](auto& r) { r.mutable_counts()->mutable_entries(3)->add_counts(1); }},
      {"expert 6",  // a sum over source ranks above 32 bits
       [](auto& r) { r.mutable_counts()->mutable_entries(2)->set_counts(6, 4294967295U); }},
  };
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  for (const BadRequest& bad : kBadRequests) {
    v1::PlanStepRequest request;
    *request.mutable_key() = Key("demo", 1);
    *request.mutable_counts() = SmallCounts(5, 2);
    bad.spoil(request);
    const grpc::Status status = planner.Plan(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
  // A refused plan does not seal the step.
  EXPECT_TRUE(planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
}

TEST(PlanStepTest, NamesUnknownJobsAndSteps) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  grpc::Status status = planner.Plan(Compose(Key("nobody", 1), 1, {}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"nobody\""));
  status = planner.Plan(Compose(Key("demo", 77, 3), 1, {}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("step 77 (policy version 3)"));
  v1::GetPlanRequest request;
  *request.mutable_key() = Key("demo", 78);
  v1::Plan plan;
  status = planner.GetPlan(request, &plan);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("step 78"));
}

TEST(PlanStepTest, ReturnsTheSamePlanForTheSameRequest) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::PlanStepResponse first;
  v1::PlanStepResponse again;
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(5), &first).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(5), &again).ok());
  // plan_seconds among it: it was not planned anew.
  EXPECT_EQ(first.SerializeAsString(), again.SerializeAsString());
}

TEST(PlanStepTest, AcceptsTheSameCompositionInAnotherOrder) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(
      planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3}), Record("b", 0, {4, 5, 6, 7})})
          .ok());
  v1::PlanStepResponse first;
  v1::PlanStepResponse again;
  ASSERT_TRUE(
      planner.Plan(Compose(Key("demo", 1), 2, {Place("a", 0, 0), Place("b", 1, 3)}), &first).ok());
  ASSERT_TRUE(
      planner.Plan(Compose(Key("demo", 1), 2, {Place("b", 1, 3), Place("a", 0, 0)}), &again).ok());
  EXPECT_EQ(first.SerializeAsString(), again.SerializeAsString());
}

TEST(PlanStepTest, RefusesAnotherRequestForAPlannedPass) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(5)).ok());
  grpc::Status status = planner.PlanCounts(Key("demo", 1), SmallCounts(6));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("pass \"update\" of step 1"));
  EXPECT_THAT(status.error_message(), HasSubstr("other loads"));
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  *request.mutable_counts() = SmallCounts(5);
  request.mutable_options()->set_seed(7);
  status = planner.Plan(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("seed 0; now asked: "));
  // Another policy version is another plan.
  EXPECT_TRUE(planner.PlanCounts(Key("demo", 1, 1), SmallCounts(6)).ok());
}

TEST(PlanStepTest, PlansOnceWhenTwoAskAtTheSameTime) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<v1::PlanStepResponse> responses(8);
  std::vector<std::thread> threads;
  threads.reserve(responses.size());
  for (v1::PlanStepResponse& response : responses) {
    threads.emplace_back(
        [&] { EXPECT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(5), &response).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const v1::PlanStepResponse& response : responses) {
    EXPECT_EQ(response.SerializeAsString(), responses[0].SerializeAsString());
  }
}

// Loads that put two hot experts on each of two ranks, so that homes are worth moving.
v1::LoadCounts Skewed(uint32_t hot) {
  v1::LoadCounts counts = SmallCounts(1);
  for (v1::LayerLoads& entry : *counts.mutable_entries()) {
    for (int s = 0; s < 4; ++s) {
      for (int e = 0; e < 4; ++e) entry.set_counts(s * 8 + e, hot);
    }
  }
  return counts;
}

std::vector<uint32_t> HomesOf(const v1::Plan& plan, int layer) {
  return {plan.layers(layer).home_rank().begin(), plan.layers(layer).home_rank().end()};
}

// Homes before and after a plan agree with its moves.
void ExpectMovesFrom(const std::vector<uint32_t>& before, const v1::Plan& plan, int layer) {
  std::vector<uint32_t> homes = before;
  for (const v1::Move& move : plan.layers(layer).moves()) {
    EXPECT_EQ(homes[move.expert()], move.from_rank());
    homes[move.expert()] = move.to_rank();
  }
  EXPECT_EQ(homes, HomesOf(plan, layer));
}

TEST(HomesTest, BeginLinearAndGoOnFromStepToStep) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<uint32_t> homes = {0, 0, 1, 1, 2, 2, 3, 3};
  uint64_t moves = 0;
  for (uint32_t step = 1; step <= 3; ++step) {
    v1::PlanStepResponse response;
    ASSERT_TRUE(planner.PlanCounts(Key("demo", step), Skewed(100 * step), &response).ok());
    moves += response.plans(0).summary().moves();
    const v1::Plan plan = WholePlan(planner, Key("demo", step));
    ExpectMovesFrom(homes, plan, 0);
    homes = HomesOf(plan, 0);
  }
  EXPECT_GT(moves, 0);
}

TEST(HomesTest, OnlyTheFirstPassOfAStepMovesThem) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.set_pass("logprob");
  *request.mutable_counts() = SmallCounts(5);
  ASSERT_TRUE(planner.Plan(request).ok());
  request.set_pass("update");
  *request.mutable_counts() = Skewed(100);
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.Plan(request, &response).ok());
  EXPECT_EQ(response.plans(0).summary().moves(), 0);
  EXPECT_EQ(HomesOf(WholePlan(planner, Key("demo", 1), "update"), 0),
            HomesOf(WholePlan(planner, Key("demo", 1), "logprob"), 0));
}

TEST(HomesTest, AreTakenBackWhenTheGroupKeptTheOldOnes) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), Skewed(100), &response).ok());
  ASSERT_GT(response.plans(0).summary().moves(), 0);
  grpc::ClientContext call;
  v1::ReportStepRequest report;
  report.mutable_report()->set_job("demo");
  report.mutable_report()->set_step(1);
  report.mutable_report()->set_digest(response.plans(0).digest());
  report.mutable_report()->set_outcome(v1::STEP_OUTCOME_KEPT_OLD);
  v1::ReportStepResponse unused;
  ASSERT_TRUE(planner.stub().ReportStep(&call, report, &unused).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 2), Skewed(100), &response).ok());
  ExpectMovesFrom({0, 0, 1, 1, 2, 2, 3, 3}, WholePlan(planner, Key("demo", 2)), 0);
}

grpc::Status Pack(TestPlanner& planner, const v1::PackSequencesRequest& request,
                  v1::PackSequencesResponse* response) {
  grpc::ClientContext call;
  return planner.stub().PackSequences(&call, request, response);
}

TEST(PackSequencesTest, ProposesACompositionThatCanBePlanned) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  // Even sequences load the first node alone, odd ones the second alone; by id they would come in
  // two runs of four of a kind.
  std::vector<v1::RoutingRecord> records;
  for (int q = 0; q < 8; ++q) {
    const std::vector<uint8_t> row =
        q < 4 ? std::vector<uint8_t>{0, 1, 2, 3} : std::vector<uint8_t>{4, 5, 6, 7};
    records.push_back(Record("s" + std::to_string(q), 0, row));
  }
  ASSERT_TRUE(planner.Send(Key("demo", 1), records).ok());
  v1::PackSequencesRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.set_num_micro_batches(2);
  request.set_max_tokens(1);
  v1::PackSequencesResponse response;
  const grpc::Status status = Pack(planner, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_LE(response.node_imbalance(), response.node_imbalance_before());
  ASSERT_EQ(response.composition().sequences_size(), 8);
  std::vector<std::vector<int>> placed(2, std::vector<int>(4));
  for (const v1::SequencePlacement& placement : response.composition().sequences()) {
    ++placed[placement.micro_batch()][placement.source_rank()];
  }
  // One token a sequence, at most one token a rank and micro-batch.
  EXPECT_THAT(placed, ::testing::Each(ElementsAre(1, 1, 1, 1)));
  v1::PlanStepRequest plan;
  *plan.mutable_key() = Key("demo", 1);
  *plan.mutable_composition() = response.composition();
  EXPECT_TRUE(planner.Plan(plan).ok());
}

TEST(PackSequencesTest, NamesWhatIsWrong) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})}).ok());
  v1::PackSequencesRequest request;
  *request.mutable_key() = Key("demo", 1);
  v1::PackSequencesResponse response;
  grpc::Status status = Pack(planner, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("num_micro_batches"));
  request.set_num_micro_batches(1);
  request.add_sequence_ids("a");
  request.add_sequence_ids("b");
  status = Pack(planner, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("1 of 2 sequences have no records: \"b\""));
  request.set_sequence_ids(1, "a");
  status = Pack(planner, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("sequence_ids[1]"));
  *request.mutable_key() = Key("demo", 5);
  request.clear_sequence_ids();
  EXPECT_EQ(Pack(planner, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

grpc::Status Upload(TestPlanner& planner, const v1::StepKey& key,
                    const std::vector<v1::LoadCounts>& parts,
                    v1::UploadLoadsResponse* response = nullptr) {
  grpc::ClientContext call;
  v1::UploadLoadsResponse unused;
  auto writer = planner.stub().UploadLoads(&call, response == nullptr ? &unused : response);
  for (const v1::LoadCounts& part : parts) {
    v1::UploadLoadsRequest request;
    *request.mutable_key() = key;
    *request.mutable_counts() = part;
    writer->Write(request);
  }
  writer->WritesDone();
  return writer->Finish();
}

// The counts in pieces of one entry.
std::vector<v1::LoadCounts> InPieces(const v1::LoadCounts& counts) {
  std::vector<v1::LoadCounts> pieces;
  for (int entry = 0; entry < counts.entries_size(); ++entry) {
    v1::LoadCounts& piece = pieces.emplace_back(counts);
    piece.clear_entries();
    *piece.add_entries() = counts.entries(entry);
    piece.set_first_entry(entry);
  }
  return pieces;
}

TEST(UploadLoadsTest, GivesTheSamePlanAsCountsInOneMessage) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Register(SmallJob("other")).ok());
  const v1::LoadCounts counts = SmallCounts(9, 3);
  v1::UploadLoadsResponse uploaded;
  // What was uploaded before is replaced.
  ASSERT_TRUE(Upload(planner, Key("demo", 1), InPieces(SmallCounts(1, 5))).ok());
  ASSERT_TRUE(Upload(planner, Key("demo", 1), InPieces(counts), &uploaded).ok());
  EXPECT_EQ(uploaded.entries(), 6);
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.set_uploaded_counts(true);
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.Plan(request, &response).ok());
  v1::PlanStepResponse expected;
  ASSERT_TRUE(planner.PlanCounts(Key("other", 1), counts, &expected).ok());
  EXPECT_EQ(response.plans(0).digest(), expected.plans(0).digest());
  EXPECT_EQ(LoadsOf(planner, Key("demo", 1)), LoadsOf(planner, Key("other", 1)));
  // Asking again gives the same plan; uploading again comes too late.
  v1::PlanStepResponse again;
  ASSERT_TRUE(planner.Plan(request, &again).ok());
  EXPECT_EQ(response.SerializeAsString(), again.SerializeAsString());
  const grpc::Status late = Upload(planner, Key("demo", 1), InPieces(counts));
  EXPECT_EQ(late.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("already planned"));
}

TEST(UploadLoadsTest, RefusesGapsAndStreamsThatEndEarly) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<v1::LoadCounts> pieces = InPieces(SmallCounts(9, 2));
  grpc::Status status = Upload(planner, Key("demo", 1), {pieces[0], pieces[2]});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("counts.first_entry: expected 1, got 2"));
  status = Upload(planner, Key("demo", 1), {pieces[0], pieces[1], pieces[2]});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("after 3 of 4 entries"));
  pieces.push_back(pieces[3]);
  pieces[4].set_first_entry(4);
  status = Upload(planner, Key("demo", 1), pieces);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("expected 4"));
  EXPECT_EQ(Upload(planner, Key("demo", 1), {}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // None of these left anything behind.
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.set_uploaded_counts(true);
  status = planner.Plan(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("no loads were uploaded"));
}

TEST(KeepStepsTest, ForgetsOldStepsAndSaysSo) {
  ServerOptions options;
  options.keep_steps = 2;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  for (uint32_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(planner.PlanCounts(Key("demo", step), SmallCounts(step)).ok());
  }
  EXPECT_EQ(planner.Status("demo").steps_size(), 2);
  v1::GetPlanRequest request;
  *request.mutable_key() = Key("demo", 2);
  v1::Plan plan;
  EXPECT_EQ(planner.GetPlan(request, &plan).error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status late = planner.Send(Key("demo", 1), {Record("a", 0, {0, 1, 2, 3})});
  EXPECT_EQ(late.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("--keep-steps 2"));
}

}  // namespace
}  // namespace relibra::server

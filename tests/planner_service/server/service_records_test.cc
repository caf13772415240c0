// Routing records over a real socket: what is taken, counted once, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

// Three tokens of two layers, top-2.
const std::vector<uint8_t> kThreeRows = {0, 1, 2, 3, 4, 5, 6, 7, 1, 0, 3, 2};

TEST(StreamRoutingTest, CountsARepeatedRecordOnce) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::StreamRoutingResponse response;
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows)}, &response).ok());
  EXPECT_EQ(response.records_accepted(), 1);
  EXPECT_EQ(response.records_repeated(), 0);
  EXPECT_GT(response.bytes_received(), kThreeRows.size());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows)}, &response).ok());
  EXPECT_EQ(response.records_accepted(), 0);
  EXPECT_EQ(response.records_repeated(), 1);
  EXPECT_EQ(planner.Status("demo").steps(0).tokens(), 3);
}

TEST(StreamRoutingTest, AcceptsAnOverlapThatAgreesAndCountsItsNewRows) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  const std::vector<uint8_t> first(kThreeRows.begin(), kThreeRows.begin() + 8);
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, first)}).ok());
  v1::StreamRoutingResponse response;
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows)}, &response).ok());
  EXPECT_EQ(response.records_accepted(), 1);
  EXPECT_EQ(planner.Status("demo").steps(0).tokens(), 3);
}

TEST(StreamRoutingTest, RefusesAnOverlapThatDisagreesAndNamesTheToken) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 10, kThreeRows)}).ok());
  std::vector<uint8_t> other = kThreeRows;
  other[8] = 5;  // third row
  const grpc::Status status = planner.Send(Key("demo", 1), {Record("s", 10, other)});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("sequence \"s\": token 12"));
  EXPECT_EQ(planner.Status("demo").steps(0).tokens(), 3);
}

struct BadRecord {
  const char* named;
  std::function<void(v1::RoutingRecord&)> spoil;
};

TEST(StreamRoutingTest, NamesWhatIsWrongWithARecord) {
  const BadRecord kBadRecords[] = {
      {"sequence_id", [](auto& r) { r.clear_sequence_id(); }},
      {"sequence_id", [](auto& r) { r.set_sequence_id(std::string(129, 'x')); }},
      {"prompt_group", [](auto& r) { r.set_prompt_group(std::string(129, 'x')); }},
      {"expected ids or counts", [](auto& r) { r.clear_routing(); }},
      {"ids.id_type", [](auto& r) { r.mutable_ids()->set_id_type(v1::ID_TYPE_UNSPECIFIED); }},
      {"ids.id_type", [](auto& r) { r.mutable_ids()->set_id_type(static_cast<v1::IdType>(50)); }},
      {"num_layers: expected 2 (the MoE layers alone, LAYER_AXIS_MOE_LAYERS), got 3",
       [](auto& r) { r.mutable_ids()->set_num_layers(3); }},
      {"ids.top_k: expected 2, got 1", [](auto& r) { r.mutable_ids()->set_top_k(1); }},
      {"ids.ids: expected 12 bytes", [](auto& r) { r.mutable_ids()->mutable_ids()->pop_back(); }},
      {"ids.ids: expected 16 bytes", [](auto& r) { r.mutable_ids()->set_num_tokens(4); }},
      {"ids.ids", [](auto& r) { r.mutable_ids()->set_num_tokens(2147480000U); }},
      {"tokens in a sequence", [](auto& r) { r.mutable_ids()->set_num_tokens(4294967295U); }},
      {"token 107, layer 2", [](auto& r) { (*r.mutable_ids()->mutable_ids())[7] = 8; }},
      {"token 107, layer 1", [](auto& r) { (*r.mutable_ids()->mutable_ids())[5] = 4; }},
      {"sequence_tokens: 108, but a piece reaches token 108",
       [](auto& r) { r.set_sequence_tokens(108); }},
      {"tokens in a sequence", [](auto& r) { r.set_token_offset(4294967295U); }},
  };
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  for (const BadRecord& bad : kBadRecords) {
    v1::RoutingRecord record = Record("s", 106, kThreeRows);
    bad.spoil(record);
    const grpc::Status status = planner.Send(Key("demo", 1), {Record("t", 0, kThreeRows), record});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr("message 0: "));
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
  // None of the messages' other records was kept.
  EXPECT_THAT(planner.Status("demo").steps(),
              ::testing::Each(::testing::Property(&v1::StepStatus::tokens, ::testing::Eq(0))));
}

TEST(StreamRoutingTest, TellsWhenTheLayerAxisIsTheOtherOne) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("demo");
  spec.set_num_hidden_layers(3);
  ASSERT_TRUE(planner.Register(spec).ok());
  const grpc::Status status = planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows, 3, 2)});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("that is the number of hidden layers"));
}

TEST(StreamRoutingTest, NamesCountsThatCannotBe) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::RoutingRecord good;
  good.set_sequence_id("s");
  good.mutable_counts()->set_num_layers(2);
  good.mutable_counts()->set_num_experts(8);
  good.mutable_counts()->set_num_tokens(2);
  for (int i = 0; i < 16; ++i) good.mutable_counts()->add_counts(i % 8 < 4 ? 1 : 0);
  const BadRecord kBadRecords[] = {
      {"counts.num_layers: expected 2", [](auto& r) { r.mutable_counts()->set_num_layers(1); }},
      {"counts.num_experts: expected 8", [](auto& r) { r.mutable_counts()->set_num_experts(9); }},
      {"counts.counts: expected 2 x 8 = 16 counts, got 17",
       [](auto& r) { r.mutable_counts()->add_counts(1); }},
      {"layer 2, expert 3: expected at most 2",
       [](auto& r) { r.mutable_counts()->set_counts(11, 3); }},
      {"layer 1: expected at most 4 (token, choice) pairs",
       [](auto& r) { r.mutable_counts()->set_counts(5, 1); }},
  };
  for (const BadRecord& bad : kBadRecords) {
    v1::RoutingRecord record = good;
    bad.spoil(record);
    const grpc::Status status = planner.Send(Key("demo", 1), {record});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
  EXPECT_TRUE(planner.Send(Key("demo", 1), {good}).ok());
}

TEST(StreamRoutingTest, KeepsTheMessagesBeforeTheBadOne) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  grpc::ClientContext call;
  v1::StreamRoutingResponse response;
  auto writer = planner.stub().StreamRouting(&call, &response);
  v1::StreamRoutingRequest request;
  *request.mutable_key() = Key("demo", 1);
  *request.add_records() = Record("a", 0, kThreeRows);
  ASSERT_TRUE(writer->Write(request));
  request.mutable_records(0)->set_sequence_id("");
  writer->Write(request);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("message 1: records[0]"));
  EXPECT_EQ(planner.Status("demo").steps(0).sequences(), 1);
}

TEST(StreamRoutingTest, NamesAJobThatIsNotKnown) {
  TestPlanner planner;
  const grpc::Status status = planner.Send(Key("nobody", 1), {Record("s", 0, kThreeRows)});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"nobody\""));
}

TEST(StreamRoutingTest, RefusesNewRecordsOfAPlannedStepButNotRetries) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows)}).ok());
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.mutable_composition()->set_num_micro_batches(1);
  request.mutable_composition()->add_sequences()->set_sequence_id("s");
  ASSERT_TRUE(planner.Plan(request).ok());
  const grpc::Status status = planner.Send(Key("demo", 1), {Record("t", 0, kThreeRows)});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("pass \"update\" of step 1 is already planned"));
  v1::StreamRoutingResponse response;
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, kThreeRows)}, &response).ok());
  EXPECT_EQ(response.records_repeated(), 1);
}

TEST(StreamRoutingTest, WarnsOfARecordWhoseRowsAreAlike) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<uint8_t> ids;
  for (int row = 0; row < 32; ++row) ids.insert(ids.end(), {0, 1, 2, 3});
  v1::StreamRoutingResponse response;
  ASSERT_TRUE(planner.Send(Key("demo", 1), {Record("s", 0, ids)}, &response).ok());
  ASSERT_EQ(response.warnings_size(), 1);
  EXPECT_THAT(response.warnings(0), HasSubstr("over half of its 32 rows are identical"));
}

TEST(QuotaTest, NamesTheFlagForAMessageThatIsTooLarge) {
  ServerOptions options;
  options.max_message_bytes = 1 << 20;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  for (size_t tokens : {(1U << 18) + 1000U, 1U << 20, 1U << 23}) {
    std::vector<uint8_t> ids;
    for (size_t t = 0; t < tokens; ++t) ids.insert(ids.end(), {0, 1, 2, 3});
    const grpc::Status status = planner.Send(Key("demo", 1), {Record("s", 0, ids)});
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("--max-message-bytes")) << tokens;
    v1::LoadCounts counts = SmallCounts(1);
    while (counts.ByteSizeLong() < tokens * 4) counts.MergeFrom(v1::LoadCounts(counts));
    const grpc::Status unary = planner.PlanCounts(Key("demo", 1), counts);
    EXPECT_EQ(unary.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(unary.error_message(), HasSubstr("--max-message-bytes")) << tokens;
  }
}

// Sends records of new sequences until one is refused; its status.
grpc::Status SendUntilRefused(TestPlanner& planner, const std::string& job, bool same_step) {
  for (uint32_t i = 0; i < 10000; ++i) {
    grpc::Status status =
        planner.Send(Key(job, same_step ? 1 : i), {Record("s" + std::to_string(i), 0, kThreeRows)});
    if (!status.ok()) return status;
  }
  return grpc::Status::OK;
}

TEST(QuotaTest, NamesTheFlagOfTheStepsMemory) {
  ServerOptions options;
  options.max_step_bytes = 20'000;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  const grpc::Status status = SendUntilRefused(planner, "demo", true);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-step-bytes"));
  EXPECT_THAT(status.error_message(), HasSubstr("step 1"));
}

TEST(QuotaTest, NamesTheFlagOfTheJobsMemory) {
  ServerOptions options;
  options.max_job_bytes = 50'000;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  const grpc::Status status = SendUntilRefused(planner, "demo", false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-job-bytes"));
  // Another job is not disturbed.
  ASSERT_TRUE(planner.Register(SmallJob("other")).ok());
  EXPECT_TRUE(planner.Send(Key("other", 1), {Record("s", 0, kThreeRows)}).ok());
}

TEST(QuotaTest, NamesTheFlagOfAllMemory) {
  ServerOptions options;
  options.max_memory_bytes = 50'000;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  const grpc::Status status = SendUntilRefused(planner, "demo", false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-memory-bytes"));
}

TEST(QuotaTest, RefusesLoadsOfAnAbsurdShapeBeforeItHoldsThem) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::PlanStepRequest request;
  *request.mutable_key() = Key("demo", 1);
  *request.mutable_counts() = SmallCounts(1);
  request.mutable_counts()->set_num_micro_batches(1 << 20);
  EXPECT_EQ(planner.Plan(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_counts()->set_num_micro_batches(4294967295U);
  EXPECT_EQ(planner.Plan(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace relibra::server

// `relibra status` and `relibra trace fetch` against a planner that answers from a script, on a
// real socket.
#include <initializer_list>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/planner_client.h"
#include "relibra/v1/planner.grpc.pb.h"
#include "tests/planner_service/cli/run_relibra.h"

namespace relibra::cli {
namespace {

using ::testing::HasSubstr;

// One job "demo" of layers 3 and 5, 2 ranks, 2 experts; step 7 has one micro-batch.
class ScriptedPlanner final : public v1::Planner::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override {
    response->set_planner_version("0.1.0");
    if (!request->job().empty() && request->job() != "demo") {
      return {grpc::StatusCode::NOT_FOUND, "no job \"" + request->job() + "\""};
    }
    v1::JobStatus& job = *response->add_jobs();
    job.mutable_spec()->set_job("demo");
    job.mutable_spec()->mutable_model()->add_moe_layer_ids(3);
    job.mutable_spec()->mutable_model()->add_moe_layer_ids(5);
    job.mutable_spec()->mutable_model()->set_top_k(1);
    v1::AgentStatus& agent = *job.add_agents();
    agent.set_host("node-a");
    agent.set_last_outcome(v1::STEP_OUTCOME_APPLIED);
    v1::StepStatus& step = *job.add_steps();
    step.mutable_key()->set_step(7);
    v1::Plan& plan = *step.add_plans();
    plan.set_pass("update");
    plan.mutable_summary()->set_imbalance_after(1.25);
    return grpc::Status::OK;
  }

  grpc::Status GetLoads(grpc::ServerContext*, const v1::GetLoadsRequest* request,
                        grpc::ServerWriter<v1::LoadCounts>* writer) override {
    if (request->key().step() != 7) return {grpc::StatusCode::NOT_FOUND, "step 8: not planned"};
    for (uint32_t entry = 0; entry < (cut_short ? 1 : 2); ++entry) {
      v1::LoadCounts message;
      message.set_num_micro_batches(1);
      message.set_num_layers(2);
      message.set_num_source_ranks(2);
      message.set_num_experts(2);
      message.set_first_entry(entry);
      v1::LayerLoads& loads = *message.add_entries();
      for (uint32_t i = 0; i < 4; ++i) loads.add_counts(10 * entry + i);
      writer->Write(message);
    }
    return grpc::Status::OK;
  }

  bool cut_short = false;
};

class PlannerCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&planner_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  Ran Fetch(const std::string& job, const std::string& step, const std::string& output) {
    return RunRelibra(
        {"trace", "fetch", "--planner", address_, "--job", job, "--step", step, "-o", output});
  }

  ScriptedPlanner planner_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(PlannerCallsTest, StatusShowsJobsAgentsAndPlans) {
  const Ran ran = RunRelibra({"status", "--planner", address_});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  for (const char* part : {"planner 0.1.0", "job demo", "node-a", "applied", "1.2500", "update"}) {
    EXPECT_THAT(ran.out, HasSubstr(part));
  }
}

TEST_F(PlannerCallsTest, StatusAsJsonIsThePlannersAnswer) {
  const Ran ran = RunRelibra({"status", "--planner", address_, "--json", "--job", "demo"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json.at("jobs").at(0).at("spec").at("job"), "demo");
}

TEST_F(PlannerCallsTest, StatusOfAnUnknownJobEndsWithStatus2) {
  const Ran ran = RunRelibra({"status", "--planner", address_, "--job", "other"});
  EXPECT_EQ(ran.exit_status, 2);
  EXPECT_THAT(ran.err, HasSubstr("no job \"other\""));
}

TEST_F(PlannerCallsTest, FetchWritesTheLoadsUnderTheModelsLayerNumbers) {
  const std::string output = ScratchFile("fetched.json");
  const Ran ran = Fetch("demo", "7", output);
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const Ran info = RunRelibra({"trace", "info", output, "--json"});
  ASSERT_EQ(info.exit_status, 0) << info.err;
  const auto facts = nlohmann::json::parse(info.out);
  EXPECT_EQ(facts.at("layer_ids"), (nlohmann::json{3, 5}));
  EXPECT_EQ(facts.at("pairs"), 0 + 1 + 2 + 3 + 10 + 11 + 12 + 13);
}

TEST_F(PlannerCallsTest, FetchNamesWhatThePlannerDoesNotHave) {
  EXPECT_EQ(Fetch("other", "7", ScratchFile("x.json")).exit_status, 2);
  const Ran ran = Fetch("demo", "8", ScratchFile("x.json"));
  EXPECT_EQ(ran.exit_status, 2);
  EXPECT_THAT(ran.err, HasSubstr("step 8: not planned"));
}

TEST_F(PlannerCallsTest, FetchRefusesLoadsThatAreCutShort) {
  planner_.cut_short = true;
  const Ran ran = Fetch("demo", "7", ScratchFile("x.json"));
  EXPECT_EQ(ran.exit_status, 1);
  EXPECT_THAT(ran.err, HasSubstr("expected 8 counts, got 4"));
}

v1::LoadCounts Message(uint32_t first_entry, int entries, int counts) {
  v1::LoadCounts message;
  message.set_num_micro_batches(2);
  message.set_num_layers(1);
  message.set_num_source_ranks(1);
  message.set_num_experts(3);
  message.set_first_entry(first_entry);
  for (int i = 0; i < entries; ++i) {
    v1::LayerLoads& loads = *message.add_entries();
    for (int c = 0; c < counts; ++c) loads.add_counts(c);
  }
  return message;
}

TEST(LoadsAssemblerTest, TakesEntriesOnlyInOrderAndOfTheShape) {
  const auto message_of = [](std::initializer_list<v1::LoadCounts> messages) {
    LoadsAssembler assembler;
    absl::Status status;
    for (const v1::LoadCounts& message : messages) status.Update(assembler.Add(message));
    return std::string(status.message());
  };
  EXPECT_EQ(message_of({Message(0, 1, 3), Message(1, 1, 3)}), "");
  EXPECT_EQ(message_of({Message(0, 2, 3)}), "");
  EXPECT_THAT(message_of({Message(1, 1, 3)}), HasSubstr("first_entry: expected 0, got 1"));
  EXPECT_THAT(message_of({Message(0, 1, 3), Message(0, 1, 3)}), HasSubstr("expected 1, got 0"));
  EXPECT_THAT(message_of({Message(0, 1, 2)}), HasSubstr("entry 0: expected 3 counts"));
  EXPECT_THAT(message_of({Message(0, 3, 3)}), HasSubstr("entry 2"));
  v1::LoadCounts other = Message(1, 1, 3);
  other.set_num_experts(4);
  EXPECT_THAT(message_of({Message(0, 1, 3), other}), HasSubstr("shape changes"));
  other.set_num_experts(0);
  EXPECT_THAT(message_of({other}), HasSubstr("num_experts: got 0"));
  EXPECT_THAT(std::string(LoadsAssembler().Finish().status().message()), HasSubstr("sent none"));
}

}  // namespace
}  // namespace relibra::cli

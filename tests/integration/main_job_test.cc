// The main job end to end: a planner and eight agents as processes, over gRPC and UCX.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "relibra/v1/planner.grpc.pb.h"
#include "tests/integration/child_process.h"

namespace relibra {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr int kRanks = 8;

class MainJob : public ::testing::TestWithParam<const char*> {
 protected:
  MainJob()
      : address_("127.0.0.1:" + std::to_string(FreePort())),
        planner_({RELIBRA_PLANNER, "--listen", address_, "--metrics-address", ""}) {}

  // The words of a rank's self-test; agents wait for the planner by themselves.
  std::vector<std::string> SelfTest(int rank, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {RELIBRA_AGENT,
                                      "selftest",
                                      "--planner",
                                      address_,
                                      "--job",
                                      "main-job",
                                      "--rank",
                                      std::to_string(rank),
                                      "--nodes",
                                      "2",
                                      "--gpus-per-node",
                                      "4",
                                      "--steps",
                                      "3",
                                      "--seed",
                                      "11",
                                      "--hidden",
                                      "16",
                                      "--intermediate",
                                      "24",
                                      "--transports",
                                      transports_,
                                      "--join-timeout",
                                      "60",
                                      "--group-timeout",
                                      "60",
                                      "--move-timeout",
                                      "10",
                                      "--plan-timeout",
                                      "20",
                                      "--exchange-timeout",
                                      "10"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::vector<ChildProcess> StartAgents(const std::vector<std::string>& more) const {
    std::vector<ChildProcess> agents;
    agents.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) agents.emplace_back(SelfTest(rank, more));
    return agents;
  }

  // Waits for all at once: shared memory takes a dead process for a living one until somebody has
  // waited for it.
  static std::vector<int> WaitAll(std::vector<ChildProcess>& agents) {
    std::vector<int> statuses(agents.size());
    std::vector<std::thread> waits;
    waits.reserve(agents.size());
    for (size_t i = 0; i < agents.size(); ++i) {
      waits.emplace_back([&, i] { statuses[i] = agents[i].Wait(); });
    }
    for (std::thread& wait : waits) wait.join();
    return statuses;
  }

  static nlohmann::json Line(const ChildProcess& agent) {
    nlohmann::json line = nlohmann::json::parse(agent.Output(), nullptr, false);
    EXPECT_FALSE(line.is_discarded()) << agent.Output() << agent.Error();
    return line;
  }

  std::string transports_ = "tcp,self";
  std::string address_;
  ChildProcess planner_;
};

TEST_P(MainJob, EightAgentsTrainLikeASingleProcessAndTheLoadIsFlat) {
  transports_ = GetParam();
  std::vector<ChildProcess> agents = StartAgents({});
  EXPECT_THAT(WaitAll(agents), Each(Eq(0)));
  for (const ChildProcess& agent : agents) {
    const nlohmann::json line = Line(agent);
    EXPECT_LE(line.at("max_relative_error"), 1e-5) << line;
    EXPECT_GT(line.at("max_relative_error"), 0) << "nothing was compared";
    EXPECT_EQ(line.at("steps_applied"), 3) << line;
    EXPECT_GT(line.at("moves"), 0) << line;
    EXPECT_GT(line.at("replicas"), 0) << line;
    EXPECT_EQ(line.at("unplanned_tokens"), 0) << line;
    EXPECT_EQ(line.at("computed_as_planned"), true) << line;
    for (int step = 0; step < 3; ++step) {
      EXPECT_LT(line.at("imbalance_after").at(step), 1.05) << line;
      EXPECT_GT(line.at("imbalance_before").at(step), 1.3) << line;
    }
  }
}

TEST_P(MainJob, AnAgentKilledMidMoveLeavesTheOthersWithAnErrorAndTheirWeightsIntact) {
  transports_ = GetParam();
  std::vector<ChildProcess> agents;
  agents.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    agents.emplace_back(SelfTest(rank, rank == 3 ? std::vector<std::string>{"--die-at-fetch", "3"}
                                                 : std::vector<std::string>{}));
  }
  const std::vector<int> statuses = WaitAll(agents);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 3) {
      EXPECT_EQ(statuses[rank], 128 + SIGKILL);
      continue;
    }
    EXPECT_EQ(statuses[rank], 1) << agents[rank].Error();
    const nlohmann::json line = Line(agents[rank]);
    EXPECT_NE(line.at("error"), "") << line;
    EXPECT_EQ(line.at("weights_intact"), true) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, MainJob, ::testing::Values("tcp,self", "posix,cma,self"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find(','));
                         });

class MainJobSabotage : public MainJob {};

TEST_P(MainJobSabotage, IsNoticedByTheComparison) {
  std::vector<ChildProcess> agents = StartAgents({"--steps", "1", "--sabotage", GetParam()});
  WaitAll(agents);
  int failed = 0;
  for (const ChildProcess& agent : agents) {
    const nlohmann::json line = Line(agent);
    EXPECT_EQ(line.at("error"), "") << line;  // it ran to its end: the numbers gave it away
    failed += line.at("max_relative_error") > 1e-3 ? 1 : 0;
  }
  EXPECT_GT(failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Sabotages, MainJobSabotage,
                         ::testing::Values("wrong-split", "drop-gradient", "double-gradient"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(name.find('-'), 1);
                           return name;
                         });

using MainJobFailures = MainJob;

TEST_F(MainJobFailures, AgentsGoOnWithTheirPlacementWhenThePlannerIsKilledWhileTheyWait) {
  std::vector<ChildProcess> agents =
      StartAgents({"--planned-steps", "1", "--plan-timeout", "2", "--allow-kept"});
  // After its first step, rank 0 waits for a plan that nobody asked for.
  ASSERT_TRUE(agents[0].AwaitError("step 0: plan applied")) << agents[0].Error();
  planner_.Signal(SIGKILL);
  EXPECT_THAT(WaitAll(agents), Each(Eq(0)));
  for (const ChildProcess& agent : agents) {
    const nlohmann::json line = Line(agent);
    EXPECT_EQ(line.at("steps"), 3) << line;
    EXPECT_EQ(line.at("steps_applied"), 1) << line;
    EXPECT_LE(line.at("max_relative_error"), 1e-5) << line;
    EXPECT_THAT(line.at("kept_reasons").at(0), HasSubstr("no plan for step 1")) << line;
  }
}

TEST_F(MainJobFailures, AnAgentThatNeverComesMakesTheOthersFailByTheirDeadline) {
  std::vector<ChildProcess> agents;
  agents.reserve(kRanks);
  for (int rank = 1; rank < kRanks; ++rank) {
    agents.emplace_back(SelfTest(rank, {"--join-timeout", "2"}));
  }
  EXPECT_THAT(WaitAll(agents), Each(Eq(1)));
}

TEST_F(MainJobFailures, WordsThatAreWrongExitWithTwoAndOneLine) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--experts", "23"}, std::vector<std::string>{"--rank", "8"},
        std::vector<std::string>{"--sabotage", "tea"}, std::vector<std::string>{"--pigeon"}}) {
    ChildProcess agent(SelfTest(0, more));
    EXPECT_EQ(agent.Wait(), 2);
    const std::string error = agent.Error();
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
}

// Loads given outright, followed by agents with memory of their own.
TEST_F(MainJobFailures, ServingAgentsFollowTwoSteps) {
  const auto stub =
      v1::Planner::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  v1::RegisterJobRequest job;
  v1::JobSpec& spec = *job.mutable_spec();
  spec.set_job("served");
  spec.mutable_model()->add_moe_layer_ids(3);
  spec.mutable_model()->set_num_experts(16);
  spec.mutable_model()->set_top_k(2);
  spec.mutable_model()->set_weight_bytes(100000);
  spec.mutable_model()->set_gradient_bytes(200000);
  spec.mutable_model()->set_optimizer_bytes(300000);
  spec.mutable_topology()->set_nodes(2);
  spec.mutable_topology()->set_gpus_per_node(4);
  spec.mutable_topology()->set_replica_slots(2);
  spec.set_layer_axis(v1::LAYER_AXIS_MOE_LAYERS);
  v1::RegisterJobResponse registered;
  grpc::ClientContext register_call;
  register_call.set_wait_for_ready(true);
  const grpc::Status known = stub->RegisterJob(&register_call, job, &registered);
  ASSERT_TRUE(known.ok()) << known.error_message();

  std::vector<ChildProcess> agents;
  agents.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    agents.emplace_back(std::vector<std::string>{RELIBRA_AGENT, "serve", "--planner", address_,
                                                 "--job", "served", "--rank", std::to_string(rank),
                                                 "--steps", "2", "--transports", "tcp,self",
                                                 "--plan-timeout", "2", "--join-timeout", "60"});
  }
  for (uint32_t step = 0; step < 2; ++step) {
    v1::PlanStepRequest request;
    request.mutable_key()->set_job("served");
    request.mutable_key()->set_step(step);
    v1::LoadCounts& counts = *request.mutable_counts();
    counts.set_num_micro_batches(1);
    counts.set_num_layers(1);
    counts.set_num_source_ranks(kRanks);
    counts.set_num_experts(16);
    v1::LayerLoads& loads = *counts.add_entries();
    for (int s = 0; s < kRanks; ++s) {
      for (uint32_t e = 0; e < 16; ++e) loads.add_counts(e / 4 == step ? 100 : 10 + e);
    }
    v1::PlanStepResponse response;
    grpc::ClientContext call;
    const grpc::Status planned = stub->PlanStep(&call, request, &response);
    ASSERT_TRUE(planned.ok()) << planned.error_message();
  }
  EXPECT_THAT(WaitAll(agents), Each(Eq(0)));
  for (const ChildProcess& agent : agents) {
    EXPECT_THAT(agent.Error(), HasSubstr("step 1:"));
  }
}

}  // namespace
}  // namespace relibra

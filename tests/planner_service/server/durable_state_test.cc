// State that survives: a planner that stops and starts, and one that is killed at any moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/planner_service/server/planner_process.h"
#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

class DurableStateTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "relibra_state_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    options_.state_file = folder_ + "/state.db";
    options_.keep_steps = 2;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  ServerOptions options_;
};

v1::Plan WholePlan(TestPlanner& planner, const v1::StepKey& key) {
  v1::GetPlanRequest request;
  *request.mutable_key() = key;
  request.set_all_splits(true);
  v1::Plan plan;
  const grpc::Status status = planner.GetPlan(request, &plan);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return plan;
}

// Loads that are worth moving homes and making replicas for, another for each step.
v1::LoadCounts SkewedCounts(uint32_t step) {
  v1::LoadCounts counts = SmallCounts(1, 3);
  for (int i = 0; i < counts.entries_size(); ++i) {
    for (uint32_t s = 0; s < 4; ++s) {
      counts.mutable_entries(i)->set_counts(static_cast<int>(s * 8 + (step + i) % 8), 500 + step);
      counts.mutable_entries(i)->set_counts(static_cast<int>(s * 8 + (step + i + 1) % 8), 300);
    }
  }
  return counts;
}

TEST_F(DurableStateTest, ComesBackWithJobsPlansAndHomes) {
  std::vector<std::string> plans;
  std::string next_digest;
  {
    TestPlanner planner;  // the same without a pause
    ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
    v1::PlanStepResponse response;
    for (uint32_t step = 1; step <= 4; ++step) {
      ASSERT_TRUE(planner.PlanCounts(Key("demo", step), SkewedCounts(step), &response).ok());
    }
    next_digest = response.plans(0).digest();
  }
  {
    TestPlanner planner(options_);
    ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
    ASSERT_TRUE(planner.Register(SmallJob("deleted")).ok());
    for (uint32_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(planner.PlanCounts(Key("demo", step), SkewedCounts(step)).ok());
    }
    for (uint32_t step = 2; step <= 3; ++step) {
      plans.push_back(WholePlan(planner, Key("demo", step)).SerializeAsString());
    }
    grpc::ClientContext call;
    v1::DeleteJobRequest request;
    request.set_job("deleted");
    v1::DeleteJobResponse response;
    ASSERT_TRUE(planner.stub().DeleteJob(&call, request, &response).ok());
  }
  TestPlanner planner(options_);
  v1::RegisterJobResponse registered;
  ASSERT_TRUE(planner.Register(SmallJob("demo"), &registered).ok());
  EXPECT_TRUE(registered.existed());
  ASSERT_TRUE(planner.Register(SmallJob("deleted"), &registered).ok());
  EXPECT_FALSE(registered.existed());
  EXPECT_EQ(planner.Status("demo").steps_size(), 2);
  for (uint32_t step = 2; step <= 3; ++step) {
    EXPECT_EQ(WholePlan(planner, Key("demo", step)).SerializeAsString(), plans[step - 2]);
  }
  // An agent that comes back is brought the plans in their order.
  v1::WatchPlansRequest watch;
  watch.set_job("demo");
  grpc::ClientContext call;
  auto reader = planner.stub().WatchPlans(&call, watch);
  v1::Plan plan;
  ASSERT_TRUE(ReadPlan(*reader, plan));
  EXPECT_EQ(plan.step(), 2);
  ASSERT_TRUE(ReadPlan(*reader, plan));
  EXPECT_EQ(plan.step(), 3);
  // The same request again gets the same plan, another is refused, records come too late.
  EXPECT_TRUE(planner.PlanCounts(Key("demo", 3), SkewedCounts(3)).ok());
  EXPECT_EQ(planner.PlanCounts(Key("demo", 3), SkewedCounts(9)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(planner.Send(Key("demo", 3), {Record("a", 0, {0, 1, 2, 3})}).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(planner.PlanCounts(Key("demo", 1), SkewedCounts(1)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  // The next step starts from the homes there were.
  v1::PlanStepResponse response;
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 4), SkewedCounts(4), &response).ok());
  EXPECT_EQ(response.plans(0).digest(), next_digest);
}

TEST_F(DurableStateTest, RemembersThatHomesWereTakenBack) {
  v1::PlanStepResponse planned;
  {
    TestPlanner planner(options_);
    ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
    ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SkewedCounts(1), &planned).ok());
    ASSERT_GT(planned.plans(0).summary().moves(), 0);
    grpc::ClientContext call;
    v1::ReportStepRequest report;
    report.mutable_report()->set_job("demo");
    report.mutable_report()->set_step(1);
    report.mutable_report()->set_digest(planned.plans(0).digest());
    report.mutable_report()->set_outcome(v1::STEP_OUTCOME_KEPT_OLD);
    v1::ReportStepResponse unused;
    ASSERT_TRUE(planner.stub().ReportStep(&call, report, &unused).ok());
  }
  TestPlanner planner(options_);
  // From the same homes the same loads lead to the same plan.
  v1::PlanStepResponse again;
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 2), SkewedCounts(1), &again).ok());
  EXPECT_EQ(again.plans(0).digest(), planned.plans(0).digest());
}

TEST_F(DurableStateTest, BelongsToOnePlannerAtATime) {
  TestPlanner planner(options_);
  ServerOptions second = options_;
  second.listen = "127.0.0.1:0";
  second.metrics_address = "";
  const auto refused = PlannerServer::Start(second);
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--state-file"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("another planner"));
}

TEST_F(DurableStateTest, IsRefusedWhenItIsNoStateFile) {
  options_.listen = "127.0.0.1:0";
  options_.metrics_address = "";
  {
    std::ofstream file(options_.state_file);
    file << std::string(10000, 'x');
  }
  auto refused = PlannerServer::Start(options_);
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(options_.state_file));
  options_.state_file = folder_ + "/no/such/folder/state.db";
  refused = PlannerServer::Start(options_);
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(options_.state_file));
}

// Plans step after step until the planner is gone; the digest of each plan that was answered.
std::map<uint32_t, std::string> PlanUntilKilled(int port, uint32_t first_step) {
  auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  auto stub = v1::Planner::NewStub(channel);
  std::map<uint32_t, std::string> digests;
  for (uint32_t step = first_step;; ++step) {
    grpc::ClientContext call;
    v1::PlanStepRequest request;
    *request.mutable_key() = Key("demo", step);
    *request.mutable_counts() = SkewedCounts(step);
    v1::PlanStepResponse response;
    if (!stub->PlanStep(&call, request, &response).ok()) return digests;
    digests[step] = response.plans(0).digest();
  }
}

TEST_F(DurableStateTest, HoldsEveryAnsweredPlanWholeHoweverThePlannerIsKilled) {
  constexpr int kKills = 200;
  // What an undisturbed planner answers: homes go on from step to step, so every digest depends on
  // all the steps before.
  TestPlanner undisturbed;
  ASSERT_TRUE(undisturbed.Register(SmallJob("demo")).ok());
  std::map<uint32_t, std::string> expected;
  uint32_t last_answered = 0;
  std::mt19937 random(7);
  const std::vector<std::string> words = {"--listen",          "127.0.0.1:0",
                                          "--metrics-address", "",
                                          "--state-file",      options_.state_file,
                                          "--keep-steps",      "2",
                                          "--log-level",       "info"};
  for (int kill = 0; kill < kKills; ++kill) {
    PlannerProcess planner(words);
    ASSERT_TRUE(planner.WaitUntilServing()) << planner.output();
    auto stub = v1::Planner::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", planner.port()),
                                                         grpc::InsecureChannelCredentials()));
    grpc::ClientContext register_call;
    v1::RegisterJobRequest spec;
    *spec.mutable_spec() = SmallJob("demo");
    v1::RegisterJobResponse registered;
    ASSERT_TRUE(stub->RegisterJob(&register_call, spec, &registered).ok());
    // Every plan that was answered is there, whole, unless newer ones took its place.
    grpc::ClientContext status_call;
    v1::GetStatusRequest status_request;
    status_request.set_job("demo");
    v1::GetStatusResponse status;
    ASSERT_TRUE(stub->GetStatus(&status_call, status_request, &status).ok());
    uint32_t last_known = 0;
    for (const v1::StepStatus& step : status.jobs(0).steps()) {
      last_known = step.key().step();
      while (expected.size() < last_known) {
        const auto next = static_cast<uint32_t>(expected.size() + 1);
        v1::PlanStepResponse response;
        ASSERT_TRUE(undisturbed.PlanCounts(Key("demo", next), SkewedCounts(next), &response).ok());
        expected[next] = response.plans(0).digest();
      }
      grpc::ClientContext plan_call;
      v1::GetPlanRequest request;
      *request.mutable_key() = step.key();
      request.set_all_splits(true);
      auto reader = stub->GetPlan(&plan_call, request);
      v1::Plan plan;
      ASSERT_TRUE(ReadPlan(*reader, plan));
      EXPECT_EQ(plan.digest(), expected[last_known]);
      EXPECT_EQ(plan.layers_size(), 2);
    }
    // The plan in flight at the kill may be there or not, nothing beyond it.
    ASSERT_GE(last_known, last_answered);
    ASSERT_LE(last_known, last_answered + 1);

    std::map<uint32_t, std::string> answered;
    std::atomic<bool> begun = false;
    std::thread client([&] {
      begun = true;
      answered = PlanUntilKilled(planner.port(), last_known + 1);
    });
    while (!begun) std::this_thread::yield();
    // A random moment, not a synchronisation.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    planner.Signal(SIGKILL);
    EXPECT_EQ(planner.WaitForExit(), -SIGKILL);
    client.join();
    last_answered = answered.empty() ? last_known : answered.rbegin()->first;
  }
  EXPECT_GT(last_answered, 0U);
}

}  // namespace
}  // namespace relibra::server

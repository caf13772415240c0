// The client against a planner of the test's own, over a real socket.
#include "worker_agent/planner_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "worker_agent/backoff.h"

namespace relibra::agent {
namespace {

using ::testing::HasSubstr;

GroupShape Shape() {
  return {.nodes = 1, .gpus_per_node = 2, .replica_slots = 1, .experts = 2, .layer_ids = {0}};
}

v1::Plan PlanOf(uint32_t step) {
  v1::Plan plan;
  plan.set_step(step);
  plan.set_digest("d" + std::to_string(step));
  plan.mutable_topology()->set_nodes(1);
  plan.mutable_topology()->set_gpus_per_node(2);
  plan.mutable_topology()->set_replica_slots(1);
  v1::LayerPlan& layer = *plan.add_layers();
  layer.add_home_rank(0);
  layer.add_home_rank(1);
  layer.add_micro_batches();
  return plan;
}

// Sends a plan as the planner does, up to but not including message `stop`.
void SendPlan(grpc::ServerWriter<v1::PlanUpdate>& writer, v1::Plan plan, int stop = 3) {
  v1::PlanUpdate layer;
  *layer.mutable_layer() = plan.layers(0);
  plan.clear_layers();
  v1::PlanUpdate header;
  *header.mutable_header() = plan;
  v1::PlanUpdate complete;
  complete.mutable_complete()->set_num_layers(1);
  complete.mutable_complete()->set_digest(plan.digest());
  int sent = 0;
  for (const v1::PlanUpdate& update : {header, layer, complete}) {
    if (sent++ < stop) writer.Write(update);
  }
}

// Each watch is served by the next script; after the last one, watches stay open until cancelled.
class ScriptedPlanner : public v1::Planner::Service {
 public:
  using Script = std::function<void(grpc::ServerWriter<v1::PlanUpdate>&)>;

  void Add(Script script) {
    absl::MutexLock lock(&mutex_);
    scripts_.push_back(std::move(script));
  }

  grpc::Status WatchPlans(grpc::ServerContext* context, const v1::WatchPlansRequest* request,
                          grpc::ServerWriter<v1::PlanUpdate>* writer) override {
    Script script;
    {
      absl::MutexLock lock(&mutex_);
      from_steps_.push_back(request->from_step());
      if (next_ < scripts_.size()) script = scripts_[next_++];
    }
    if (script) {
      script(*writer);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the planner was killed");
    }
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(2));
    return grpc::Status::CANCELLED;
  }

  grpc::Status JoinGroup(grpc::ServerContext*, const v1::JoinGroupRequest* request,
                         v1::JoinGroupResponse* response) override {
    if (++joins_ < 3) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
    *response->add_members() = request->agent();
    *response->add_members() = request->agent();
    return grpc::Status::OK;
  }

  grpc::Status ReportStep(grpc::ServerContext*, const v1::ReportStepRequest* request,
                          v1::ReportStepResponse*) override {
    report_ = request->report();
    reported_.Notify();
    return grpc::Status::OK;
  }

  std::vector<uint32_t> from_steps() {
    absl::MutexLock lock(&mutex_);
    return from_steps_;
  }
  absl::Notification& reported() { return reported_; }
  const v1::StepReport& report() const { return report_; }

 private:
  absl::Mutex mutex_;
  std::vector<Script> scripts_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> from_steps_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> joins_ = 0;
  absl::Notification reported_;
  v1::StepReport report_;
};

class PlannerClientTest : public ::testing::Test {
 protected:
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&planner_);
    server_ = builder.BuildAndStart();
    client_ = MakeClient();
  }
  std::unique_ptr<PlannerClient> MakeClient() const {
    return std::make_unique<PlannerClient>(
        PlannerClientOptions{.planner = "127.0.0.1:" + std::to_string(port_),
                             .job = "job",
                             .rank = 1,
                             .shape = Shape(),
                             .first_backoff = absl::Milliseconds(1),
                             .longest_backoff = absl::Milliseconds(20)});
  }
  ~PlannerClientTest() override {
    client_.reset();
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }

  static absl::Time Late() { return absl::Now() + absl::Seconds(30); }

  ScriptedPlanner planner_;
  int port_ = 1;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<PlannerClient> client_;
};

TEST_F(PlannerClientTest, APlanArrivesWhole) {
  planner_.Add([](auto& writer) { SendPlan(writer, PlanOf(0)); });
  Start();
  client_->Watch(0);
  const auto plan = client_->WaitForPlan({.step = 0}, Late());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->digest, "d0");
}

TEST_F(PlannerClientTest, AStreamThatBreaksBeforeTheEndHasToldNothing) {
  for (int sent = 1; sent <= 2; ++sent) {
    planner_.Add([sent](auto& writer) { SendPlan(writer, PlanOf(0), sent); });
  }
  Start();
  client_->Watch(0);
  const auto plan = client_->WaitForPlan({.step = 0}, absl::Now() + absl::Milliseconds(300));
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("the planner was killed"));
}

TEST_F(PlannerClientTest, ABrokenStreamIsTakenUpAgain) {
  planner_.Add([](auto& writer) { SendPlan(writer, PlanOf(0), 2); });
  planner_.Add([](auto& writer) { SendPlan(writer, PlanOf(0)); });
  planner_.Add([](auto& writer) {
    SendPlan(writer, PlanOf(0));  // what came before comes again
    SendPlan(writer, PlanOf(1));
  });
  Start();
  client_->Watch(0);
  EXPECT_TRUE(client_->WaitForPlan({.step = 0}, Late()).ok());
  EXPECT_TRUE(client_->WaitForPlan({.step = 1}, Late()).ok());
  EXPECT_EQ(planner_.from_steps()[0], 0u);
}

TEST_F(PlannerClientTest, PassesAndPolicyVersionsHavePlansOfTheirOwn) {
  planner_.Add([](auto& writer) {
    v1::Plan plan = PlanOf(4);
    plan.set_pass("logprob");
    plan.set_policy_version(9);
    SendPlan(writer, plan);
  });
  Start();
  client_->Watch(4);
  EXPECT_TRUE(client_->WaitForPlan({4, 9, "logprob"}, Late()).ok());
  EXPECT_FALSE(client_->WaitForPlan({4, 9, "update"}, absl::Now()).ok());
  EXPECT_FALSE(client_->WaitForPlan({4, 8, "logprob"}, absl::Now()).ok());
}

TEST_F(PlannerClientTest, APlanThatBreaksARuleIsAnErrorNotACrash) {
  planner_.Add([](auto& writer) {
    v1::Plan plan = PlanOf(0);
    plan.mutable_layers(0)->set_home_rank(0, 7);
    SendPlan(writer, plan);
  });
  Start();
  client_->Watch(0);
  const auto plan = client_->WaitForPlan({.step = 0}, Late());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("home rank 7"));
}

TEST_F(PlannerClientTest, AnEndThatDoesNotFitItsHeaderIsNoPlan) {
  planner_.Add([](auto& writer) {
    v1::PlanUpdate header;
    *header.mutable_header() = PlanOf(0);
    writer.Write(header);
    v1::PlanUpdate complete;
    complete.mutable_complete()->set_num_layers(1);
    complete.mutable_complete()->set_digest("d0");
    writer.Write(complete);  // the layer is missing
  });
  Start();
  client_->Watch(0);
  EXPECT_FALSE(client_->WaitForPlan({.step = 0}, absl::Now() + absl::Milliseconds(200)).ok());
}

TEST_F(PlannerClientTest, JoiningTriesAgainUntilTheJobIsKnown) {
  Start();
  v1::AgentInfo self;
  self.set_rank(1);
  const auto members = client_->JoinGroup(self, Late());
  ASSERT_TRUE(members.ok()) << members.status();
  EXPECT_EQ(members->size(), 2u);
}

TEST_F(PlannerClientTest, JoiningAPlannerThatIsNotThereEndsAtItsDeadline) {
  client_ = MakeClient();
  const auto members = client_->JoinGroup({}, absl::Now() + absl::Milliseconds(200));
  EXPECT_FALSE(members.ok());
  EXPECT_THAT(std::string(members.status().message()), HasSubstr("job 'job'"));
}

TEST_F(PlannerClientTest, ReportsAreDeliveredInTheBackground) {
  Start();
  v1::StepReport report;
  report.set_step(5);
  report.set_outcome(v1::STEP_OUTCOME_KEPT_OLD);
  client_->Report(report);
  planner_.reported().WaitForNotification();
  EXPECT_EQ(planner_.report().step(), 5u);
  EXPECT_EQ(planner_.report().job(), "job");
}

TEST_F(PlannerClientTest, ReportsToADeadPlannerAreLostWithoutBlocking) {
  client_ = MakeClient();
  for (int i = 0; i < 1000; ++i) client_->Report({});
  client_.reset();
}

TEST(Backoff, DoublesUpToTheLongestWithJitterOfAHalf) {
  Backoff backoff(absl::Seconds(1), absl::Seconds(5), 1);
  for (const int whole : {1, 2, 4, 5, 5}) {
    const absl::Duration wait = backoff.Next();
    EXPECT_GE(wait, absl::Seconds(whole) / 2);
    EXPECT_LE(wait, absl::Seconds(whole));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Seconds(1));
}

TEST(Backoff, RanksComeBackAtDifferentTimes) {
  std::set<absl::Duration> waits;
  for (uint64_t rank = 0; rank < 100; ++rank) {
    waits.insert(Backoff(absl::Seconds(1), absl::Seconds(5), rank).Next());
  }
  EXPECT_GT(waits.size(), 95u);
}

}  // namespace
}  // namespace relibra::agent

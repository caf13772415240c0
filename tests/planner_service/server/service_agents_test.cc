// Agents over a real socket: joining, watching, reporting, a planner that drains.
#include <gmock/gmock.h>
#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

v1::JoinGroupRequest Agent(uint32_t rank, uint64_t incarnation, const std::string& address) {
  v1::JoinGroupRequest request;
  request.mutable_agent()->set_job("demo");
  request.mutable_agent()->set_rank(rank);
  request.mutable_agent()->set_host("host" + std::to_string(rank));
  request.mutable_agent()->set_transport("ucx");
  request.mutable_agent()->set_transport_address(address);
  request.mutable_agent()->set_incarnation(incarnation);
  return request;
}

struct Joined {
  grpc::Status status;
  v1::JoinGroupResponse response;
};

// Joins on a thread of its own.
std::future<Joined> Join(TestPlanner& planner, v1::JoinGroupRequest request,
                         std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  return std::async(std::launch::async, [&planner, request = std::move(request), deadline] {
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() + deadline);
    Joined joined;
    joined.status = planner.stub().JoinGroup(&call, request, &joined.response);
    return joined;
  });
}

TEST(JoinGroupTest, AnswersWhenAllRanksAreThere) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<std::future<Joined>> joining;
  for (uint32_t rank : {2, 0, 3, 1}) {
    joining.push_back(Join(planner, Agent(rank, 1, "address" + std::to_string(rank))));
  }
  for (std::future<Joined>& waiting : joining) {
    const Joined joined = waiting.get();
    ASSERT_TRUE(joined.status.ok()) << joined.status.error_message();
    ASSERT_EQ(joined.response.members_size(), 4);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(joined.response.members(rank).rank(), rank);
      EXPECT_EQ(joined.response.members(rank).transport_address(),
                "address" + std::to_string(rank));
    }
  }
  // Saying the same again gets the same members at once.
  const Joined again = Join(planner, Agent(2, 1, "address2")).get();
  EXPECT_EQ(again.response.members_size(), 4);
}

TEST(JoinGroupTest, TellsAtTheDeadlineWhoIsMissing) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  const Joined joined = Join(planner, Agent(1, 1, "address"), std::chrono::milliseconds(500)).get();
  EXPECT_EQ(joined.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(joined.status.error_message(), HasSubstr("have not joined: 0, 2, 3"));
}

TEST(JoinGroupTest, LetsANewerIncarnationReplaceTheOld) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::future<Joined> old_life = Join(planner, Agent(0, 1, "old"));
  // The new life can only be told from the old once the old one is known.
  while (planner.Status("demo").agents_size() == 0) std::this_thread::yield();
  std::future<Joined> new_life = Join(planner, Agent(0, 2, "new"));
  EXPECT_EQ(old_life.get().status.error_code(), grpc::StatusCode::ABORTED);
  std::vector<std::future<Joined>> others;
  for (uint32_t rank = 1; rank < 4; ++rank) others.push_back(Join(planner, Agent(rank, 1, "a")));
  const Joined joined = new_life.get();
  ASSERT_TRUE(joined.status.ok()) << joined.status.error_message();
  EXPECT_EQ(joined.response.members(0).transport_address(), "new");
  // The old life is refused from now on.
  const Joined late = Join(planner, Agent(0, 1, "old")).get();
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.status.error_message(), HasSubstr("agent.incarnation"));
}

TEST(JoinGroupTest, NeverHandsOutAnAddressOfAnEarlierLife) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  std::vector<std::future<Joined>> first_round;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    first_round.push_back(Join(planner, Agent(rank, 1, "first")));
  }
  for (auto& waiting : first_round) ASSERT_TRUE(waiting.get().status.ok());
  std::vector<std::future<Joined>> second_round;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    second_round.push_back(Join(planner, Agent(rank, 2, "second")));
  }
  for (auto& waiting : second_round) {
    const Joined joined = waiting.get();
    ASSERT_TRUE(joined.status.ok()) << joined.status.error_message();
    for (const v1::AgentInfo& member : joined.response.members()) {
      EXPECT_EQ(member.transport_address(), "second");
    }
  }
}

TEST(JoinGroupTest, NamesTheFieldThatIsWrong) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  Joined joined = Join(planner, Agent(4, 1, "address")).get();
  EXPECT_EQ(joined.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(joined.status.error_message(), HasSubstr("agent.rank"));
  joined = Join(planner, Agent(0, 1, std::string((64 << 10) + 1, 'x'))).get();
  EXPECT_EQ(joined.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(joined.status.error_message(), HasSubstr("agent.transport_address"));
  v1::JoinGroupRequest request = Agent(0, 1, "address");
  request.mutable_agent()->set_ep_group("ep7");
  joined = Join(planner, request).get();
  EXPECT_EQ(joined.status.error_code(), grpc::StatusCode::NOT_FOUND);
}

struct Watch {
  Watch(TestPlanner& planner, uint32_t rank, uint32_t from_step = 0) {
    v1::WatchPlansRequest request;
    request.set_job("demo");
    request.set_rank(rank);
    request.set_from_step(from_step);
    reader = planner.stub().WatchPlans(&call, request);
  }

  grpc::ClientContext call;
  std::unique_ptr<grpc::ClientReader<v1::PlanUpdate>> reader;
};

v1::LoadCounts HotExpert() {
  v1::LoadCounts counts = SmallCounts(3, 2);
  for (v1::LayerLoads& entry : *counts.mutable_entries()) entry.set_counts(5, 1000);
  return counts;
}

TEST(WatchPlansTest, BringsEveryPlanWithTheRanksOwnRows) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), HotExpert()).ok());
  Watch watch(planner, 2);
  v1::Plan plan;
  ASSERT_TRUE(ReadPlan(*watch.reader, plan));
  EXPECT_EQ(plan.step(), 1);
  EXPECT_EQ(plan.job(), "demo");
  EXPECT_EQ(plan.pass(), "update");
  EXPECT_EQ(plan.ep_group(), "ep0");
  ASSERT_EQ(plan.layers_size(), 2);
  for (const v1::LayerPlan& layer : plan.layers()) {
    for (const v1::MicroBatchPlan& micro_batch : layer.micro_batches()) {
      EXPECT_EQ(micro_batch.splits_size(), 0);
      for (const v1::SplitColumns& columns : micro_batch.split_columns()) {
        EXPECT_EQ(columns.source_rank(), 2);
      }
    }
  }
  // The rows are those of the whole plan.
  v1::GetPlanRequest request;
  *request.mutable_key() = Key("demo", 1);
  request.set_all_splits(true);
  v1::Plan whole;
  ASSERT_TRUE(planner.GetPlan(request, &whole).ok());
  for (int l = 0; l < 2; ++l) {
    for (int m = 0; m < 2; ++m) {
      for (uint32_t e = 0; e < 8; ++e) {
        EXPECT_EQ(SplitTokensOf(plan, l, m, 2, e), SplitTokensOf(whole, l, m, 2, e));
      }
    }
  }
  // And the next plan comes when it is made.
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 2), SmallCounts(8)).ok());
  ASSERT_TRUE(ReadPlan(*watch.reader, plan));
  EXPECT_EQ(plan.step(), 2);
}

TEST(WatchPlansTest, BeginsAtTheStepAskedFor) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(planner.PlanCounts(Key("demo", step), SmallCounts(step)).ok());
  }
  Watch watch(planner, 0, 3);
  v1::Plan plan;
  ASSERT_TRUE(ReadPlan(*watch.reader, plan));
  EXPECT_EQ(plan.step(), 3);
}

TEST(WatchPlansTest, EndsWhenTheJobIsDeleted) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  Watch watch(planner, 0);
  watch.reader->WaitForInitialMetadata();
  grpc::ClientContext call;
  v1::DeleteJobRequest request;
  request.set_job("demo");
  v1::DeleteJobResponse response;
  ASSERT_TRUE(planner.stub().DeleteJob(&call, request, &response).ok());
  v1::PlanUpdate update;
  EXPECT_FALSE(watch.reader->Read(&update));
  const grpc::Status status = watch.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(WatchPlansTest, NamesTheFieldThatIsWrong) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  Watch bad_rank(planner, 4);
  v1::PlanUpdate update;
  EXPECT_FALSE(bad_rank.reader->Read(&update));
  EXPECT_EQ(bad_rank.reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(WatchPlansTest, ShowsInTheStatusAndIsForgottenWhenTheAgentGoes) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(1)).ok());
  auto watch = std::make_unique<Watch>(planner, 3);
  v1::Plan plan;
  ASSERT_TRUE(ReadPlan(*watch->reader, plan));
  v1::JobStatus status = planner.Status("demo");
  ASSERT_EQ(status.agents_size(), 1);
  EXPECT_EQ(status.agents(0).rank(), 3);
  EXPECT_TRUE(status.agents(0).watching());
  watch->call.TryCancel();
  EXPECT_FALSE(watch->reader->Finish().ok());
  while (planner.Status("demo").agents_size() != 0) std::this_thread::yield();
}

TEST(WatchPlansTest, ServesManyAgentsWithoutAThreadEach) {
  TestPlanner planner;
  v1::JobSpec spec = SmallJob("demo");
  spec.mutable_topology()->set_nodes(64);
  spec.mutable_topology()->set_gpus_per_node(4);
  spec.mutable_model()->set_num_experts(256);
  ASSERT_TRUE(planner.Register(spec).ok());
  v1::LoadCounts counts;
  counts.set_num_micro_batches(1);
  counts.set_num_layers(2);
  counts.set_num_source_ranks(256);
  counts.set_num_experts(256);
  for (int entry = 0; entry < 2; ++entry) {
    v1::LayerLoads& loads = *counts.add_entries();
    for (uint32_t i = 0; i < 256 * 256; ++i) loads.add_counts(i % 7);
  }
  std::vector<std::unique_ptr<Watch>> watches;
  for (uint32_t i = 0; i < 1000; ++i) watches.push_back(std::make_unique<Watch>(planner, i % 256));
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), counts).ok());
  for (const auto& watch : watches) {
    v1::Plan plan;
    ASSERT_TRUE(ReadPlan(*watch->reader, plan));
    EXPECT_EQ(plan.layers_size(), 2);
  }
}

TEST(ReportStepTest, ShowsInTheStatus) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::ReportStepRequest request;
  request.mutable_report()->set_job("demo");
  request.mutable_report()->set_step(12);
  request.mutable_report()->set_rank(1);
  request.mutable_report()->set_outcome(v1::STEP_OUTCOME_KEPT_OLD);
  request.mutable_report()->set_reason("digests differ");
  v1::ReportStepResponse response;
  {
    grpc::ClientContext call;
    ASSERT_TRUE(planner.stub().ReportStep(&call, request, &response).ok());
  }
  const v1::JobStatus status = planner.Status("demo");
  ASSERT_EQ(status.agents_size(), 1);
  EXPECT_EQ(status.agents(0).last_step(), 12);
  EXPECT_EQ(status.agents(0).last_outcome(), v1::STEP_OUTCOME_KEPT_OLD);
  EXPECT_EQ(status.agents(0).last_reason(), "digests differ");
  request.mutable_report()->set_outcome(v1::STEP_OUTCOME_UNSPECIFIED);
  grpc::ClientContext bad_call;
  const grpc::Status bad = planner.stub().ReportStep(&bad_call, request, &response);
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bad.error_message(), HasSubstr("report.outcome"));
}

TEST(DrainTest, EndsWatchesJoinsAndStreamsWithUnavailable) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(1)).ok());
  Watch watch(planner, 0);
  v1::Plan plan;
  ASSERT_TRUE(ReadPlan(*watch.reader, plan));
  std::future<Joined> joining = Join(planner, Agent(1, 1, "address"));
  while (planner.Status("demo").agents_size() < 2) std::this_thread::yield();
  grpc::ClientContext call;
  v1::StreamRoutingResponse response;
  auto writer = planner.stub().StreamRouting(&call, &response);
  v1::StreamRoutingRequest request;
  *request.mutable_key() = Key("demo", 2);
  *request.add_records() = Record("a", 0, {0, 1, 2, 3});
  ASSERT_TRUE(writer->Write(request));
  while (planner.Status("demo").records() == 0) std::this_thread::yield();

  planner.server().Drain();

  v1::PlanUpdate update;
  EXPECT_FALSE(watch.reader->Read(&update));
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(joining.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace relibra::server

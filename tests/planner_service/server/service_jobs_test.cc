// Jobs over a real socket: registration, its refusals, deletion, status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

TEST(RegisterJobTest, FillsDefaultsIn) {
  TestPlanner planner;
  v1::RegisterJobResponse response;
  ASSERT_TRUE(planner.Register(SmallJob("demo"), &response).ok());
  EXPECT_FALSE(response.existed());
  const v1::JobSpec& spec = response.spec();
  EXPECT_EQ(spec.layer_axis(), v1::LAYER_AXIS_MOE_LAYERS);
  EXPECT_DOUBLE_EQ(spec.max_missing_share(), 0.05);
  ASSERT_EQ(spec.ep_groups_size(), 1);
  EXPECT_EQ(spec.ep_groups(0).name(), "ep0");
  EXPECT_THAT(spec.ep_groups(0).global_ranks(), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(spec.ep_groups(0).layer_ids(), ::testing::ElementsAre(1, 2));
}

TEST(RegisterJobTest, AcceptsTheSameSpecAgain) {
  TestPlanner planner;
  v1::RegisterJobResponse response;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.Register(SmallJob("demo"), &response).ok());
  EXPECT_TRUE(response.existed());
  // With the defaults written out it is still the same.
  ASSERT_TRUE(planner.Register(response.spec(), &response).ok());
  EXPECT_TRUE(response.existed());
}

TEST(RegisterJobTest, RefusesAnotherSpecAndNamesTheFirstDifference) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  v1::JobSpec other = SmallJob("demo");
  other.mutable_topology()->set_replica_slots(2);
  const grpc::Status status = planner.Register(other);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("topology.replica_slots: 1 -> 2"));
}

struct BadSpec {
  const char* named;  // what the message must name
  std::function<void(v1::JobSpec&)> spoil;
};

TEST(RegisterJobTest, NamesTheFieldThatIsWrong) {
  const BadSpec kBadSpecs[] = {
      {"job: expected 1 to 63 of [a-z0-9-]", [](auto& s) { s.set_job("Demo"); }},
      {"job: expected 1 to 63 of [a-z0-9-]", [](auto& s) { s.set_job(""); }},
      {"job: expected 1 to 63 of [a-z0-9-]", [](auto& s) { s.set_job(std::string(64, 'a')); }},
      {"job: expected 1 to 63 of [a-z0-9-]", [](auto& s) { s.set_job("a\nb"); }},
      {"model.moe_layer_ids", [](auto& s) { s.mutable_model()->clear_moe_layer_ids(); }},
      {"model.moe_layer_ids[1]", [](auto& s) { s.mutable_model()->set_moe_layer_ids(1, 1); }},
      {"model.moe_layer_ids", [](auto& s) { s.mutable_model()->set_moe_layer_ids(1, 1 << 20); }},
      {"model.num_experts", [](auto& s) { s.mutable_model()->set_num_experts(0); }},
      {"model.num_experts", [](auto& s) { s.mutable_model()->set_num_experts(1 << 20); }},
      {"model.top_k", [](auto& s) { s.mutable_model()->set_top_k(0); }},
      {"model.top_k", [](auto& s) { s.mutable_model()->set_top_k(9); }},
      {"topology.nodes", [](auto& s) { s.mutable_topology()->set_nodes(0); }},
      {"topology.nodes", [](auto& s) { s.mutable_topology()->set_nodes(4294967295U); }},
      {"topology.gpus_per_node", [](auto& s) { s.mutable_topology()->set_gpus_per_node(0); }},
      {"topology.replica_slots", [](auto& s) { s.mutable_topology()->set_replica_slots(70000); }},
      {"8 experts do not divide evenly over 6 ranks",
       [](auto& s) { s.mutable_topology()->set_nodes(3); }},
      {"layer_axis", [](auto& s) { s.set_layer_axis(static_cast<v1::LayerAxis>(9)); }},
      {"num_hidden_layers", [](auto& s) { s.set_layer_axis(v1::LAYER_AXIS_ALL_LAYERS); }},
      {"layer 2 is not below num_hidden_layers 2",
       [](auto& s) {
         s.set_layer_axis(v1::LAYER_AXIS_ALL_LAYERS);
         s.set_num_hidden_layers(2);
       }},
      {"id_type", [](auto& s) { s.set_id_type(static_cast<v1::IdType>(77)); }},
      {"id_type: ID_TYPE_INT8 holds ids up to 127, too small for model.num_experts 132",
       [](auto& s) {
         s.mutable_model()->set_num_experts(132);
         s.set_id_type(v1::ID_TYPE_INT8);
       }},
      {"id_type: ID_TYPE_UINT8 holds ids up to 255, too small for model.num_experts 260",
       [](auto& s) {
         s.mutable_model()->set_num_experts(260);
         s.set_id_type(v1::ID_TYPE_UINT8);
       }},
      {"max_missing_share", [](auto& s) { s.set_max_missing_share(1.5); }},
      {"max_missing_share", [](auto& s) { s.set_max_missing_share(-0.1); }},
      {"max_missing_share", [](auto& s) { s.set_max_missing_share(std::nan("")); }},
      {"plan_options.effort",
       [](auto& s) { s.mutable_plan_options()->set_effort(static_cast<v1::Effort>(5)); }},
      {"plan_options.move_cost", [](auto& s) { s.mutable_plan_options()->set_move_cost(-1); }},
      {"plan_options.replica_cost",
       [](auto& s) { s.mutable_plan_options()->set_replica_cost(std::nan("")); }},
      {"plan_options.bridges", [](auto& s) { s.mutable_plan_options()->set_bridges(1 << 20); }},
  };
  TestPlanner planner;
  for (const BadSpec& bad : kBadSpecs) {
    v1::JobSpec spec = SmallJob("demo");
    bad.spoil(spec);
    const grpc::Status status = planner.Register(spec);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
}

// Two stages of one layer each, two data-parallel replicas of each.
v1::JobSpec FourGroups() {
  v1::JobSpec spec = SmallJob("demo");
  for (uint32_t g = 0; g < 4; ++g) {
    v1::EpGroup& group = *spec.add_ep_groups();
    group.set_name("stage" + std::to_string(g / 2) + "-dp" + std::to_string(g % 2));
    for (uint32_t r = 0; r < 4; ++r) group.add_global_ranks(4 * g + r);
    group.add_layer_ids(1 + g / 2);
    group.set_data_parallel_index(g % 2);
  }
  return spec;
}

TEST(RegisterJobTest, TakesStagesAndDataParallelGroups) {
  TestPlanner planner;
  const grpc::Status status = planner.Register(FourGroups());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(RegisterJobTest, RefusesGroupsThatOverlapOrLeaveGaps) {
  const BadSpec kBadSpecs[] = {
      {"ep_groups[1].name: \"stage0-dp0\" is used twice",
       [](auto& s) { s.mutable_ep_groups(1)->set_name("stage0-dp0"); }},
      {"ep_groups[2].name", [](auto& s) { s.mutable_ep_groups(2)->set_name("Stage"); }},
      {"ep_groups[1].global_ranks[2]: rank 0 is already in group \"stage0-dp0\"",
       [](auto& s) { s.mutable_ep_groups(1)->set_global_ranks(2, 0); }},
      {"ep_groups[1].global_ranks[1]: rank 4 is already in group \"stage0-dp1\"",
       [](auto& s) { s.mutable_ep_groups(1)->set_global_ranks(1, 4); }},
      {"ep_groups[3].global_ranks: expected 4 ranks",
       [](auto& s) { s.mutable_ep_groups(3)->mutable_global_ranks()->RemoveLast(); }},
      {"ep_groups[3].global_ranks: expected 4 ranks",
       [](auto& s) { s.mutable_ep_groups(3)->clear_global_ranks(); }},
      {"ep_groups[0].layer_ids[0]: layer 7 is not in model.moe_layer_ids",
       [](auto& s) { s.mutable_ep_groups(0)->set_layer_ids(0, 7); }},
      {"ep_groups[2].layer_ids: layer 1 of data_parallel_index 0 is already in group "
       "\"stage0-dp0\"",
       [](auto& s) { s.mutable_ep_groups(2)->set_layer_ids(0, 1); }},
      {"ep_groups: no group of data_parallel_index 1 has layer 2",
       [](auto& s) { s.mutable_ep_groups()->RemoveLast(); }},
      {"ep_groups: no group has data_parallel_index 1",
       [](auto& s) {
         s.mutable_ep_groups(1)->set_data_parallel_index(2);
         s.mutable_ep_groups(3)->set_data_parallel_index(2);
       }},
      {"data_parallel_index",
       [](auto& s) { s.mutable_ep_groups(1)->set_data_parallel_index(4294967295U); }},
  };
  TestPlanner planner;
  for (const BadSpec& bad : kBadSpecs) {
    v1::JobSpec spec = FourGroups();
    bad.spoil(spec);
    const grpc::Status status = planner.Register(spec);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.named;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.named));
  }
}

TEST(RegisterJobTest, NamesTheFlagAboveTheQuotaOfJobs) {
  ServerOptions options;
  options.max_jobs = 2;
  TestPlanner planner(options);
  ASSERT_TRUE(planner.Register(SmallJob("a")).ok());
  ASSERT_TRUE(planner.Register(SmallJob("b")).ok());
  const grpc::Status status = planner.Register(SmallJob("c"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-jobs"));
  // A job that is known is not a new one, and a deleted one makes room.
  EXPECT_TRUE(planner.Register(SmallJob("b")).ok());
  grpc::ClientContext call;
  v1::DeleteJobRequest request;
  request.set_job("a");
  v1::DeleteJobResponse response;
  ASSERT_TRUE(planner.stub().DeleteJob(&call, request, &response).ok());
  EXPECT_TRUE(planner.Register(SmallJob("c")).ok());
}

TEST(DeleteJobTest, ForgetsTheJobAndItsPlans) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("demo", 1), SmallCounts(10)).ok());
  v1::DeleteJobRequest request;
  request.set_job("demo");
  v1::DeleteJobResponse response;
  grpc::ClientContext call;
  ASSERT_TRUE(planner.stub().DeleteJob(&call, request, &response).ok());
  grpc::ClientContext again;
  const grpc::Status status = planner.stub().DeleteJob(&again, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"demo\""));
  ASSERT_TRUE(planner.Register(SmallJob("demo")).ok());
  EXPECT_EQ(planner.Status("demo").steps_size(), 0);
}

TEST(GetStatusTest, NamesAJobThatIsNotKnown) {
  TestPlanner planner;
  grpc::ClientContext call;
  v1::GetStatusRequest request;
  request.set_job("nobody");
  v1::GetStatusResponse response;
  const grpc::Status status = planner.stub().GetStatus(&call, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("\"nobody\""));
}

TEST(GetStatusTest, TellsJobsStepsAndPlans) {
  TestPlanner planner;
  ASSERT_TRUE(planner.Register(SmallJob("a")).ok());
  ASSERT_TRUE(planner.Register(SmallJob("b")).ok());
  ASSERT_TRUE(planner.Send(Key("a", 3), {Record("s0", 0, {0, 1, 2, 3})}).ok());
  ASSERT_TRUE(planner.PlanCounts(Key("b", 4, 9), SmallCounts(10)).ok());
  grpc::ClientContext call;
  v1::GetStatusResponse response;
  ASSERT_TRUE(planner.stub().GetStatus(&call, {}, &response).ok());
  EXPECT_FALSE(response.planner_version().empty());
  ASSERT_EQ(response.jobs_size(), 2);
  EXPECT_EQ(response.jobs(0).spec().job(), "a");
  EXPECT_EQ(response.jobs(0).records(), 1);
  ASSERT_EQ(response.jobs(0).steps_size(), 1);
  EXPECT_EQ(response.jobs(0).steps(0).key().step(), 3);
  EXPECT_EQ(response.jobs(0).steps(0).sequences(), 1);
  EXPECT_EQ(response.jobs(0).steps(0).tokens(), 1);
  ASSERT_EQ(response.jobs(1).steps_size(), 1);
  EXPECT_EQ(response.jobs(1).steps(0).key().policy_version(), 9);
  ASSERT_EQ(response.jobs(1).steps(0).plans_size(), 1);
  EXPECT_EQ(response.jobs(1).steps(0).plans(0).pass(), "update");
  EXPECT_EQ(response.jobs(1).steps(0).plans(0).layers_size(), 0);
}

}  // namespace
}  // namespace relibra::server

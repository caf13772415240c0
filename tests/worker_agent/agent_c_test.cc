// The C ABI as a caller meets it: through the shared library alone.
#include "worker_agent/agent_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/integration/child_process.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kLayers[] = {0, 1};
constexpr relibra_buffer_spec kBuffers[] = {
    {"weight", RELIBRA_BF16, RELIBRA_WEIGHT, 64, 0, 0},
    {"moment", RELIBRA_FP32, RELIBRA_OPTIMIZER_STATE, 128, 0, 0},
    {"gradient", RELIBRA_FP32, RELIBRA_GRADIENT, 128, RELIBRA_BF16, 0}};

// Two ranks in one node, four experts.
relibra_agent_config GoodConfig() {
  relibra_agent_config config;
  relibra_agent_config_init(&config, sizeof(config));
  config.planner = "127.0.0.1:1";
  config.job = "job";
  config.gpus_per_node = 2;
  config.replica_slots = 1;
  config.experts = 4;
  config.num_layers = 2;
  config.layer_ids = kLayers;
  config.num_buffers = 3;
  config.buffers = kBuffers;
  config.transports = "tcp,self";
  config.plan_timeout = 0.1;
  config.group_timeout = 30;
  return config;
}

class Handle {
 public:
  explicit Handle(const relibra_agent_config& config) : agent_(relibra_agent_new(&config)) {}
  ~Handle() { relibra_agent_free(agent_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  relibra_agent* get() const { return agent_; }
  std::string error() const { return relibra_agent_last_error(agent_); }

 private:
  relibra_agent* agent_;
};

TEST(AgentC, LibraryAndHeaderAreOfOneVersion) {
  EXPECT_EQ(relibra_agent_abi_version(), RELIBRA_AGENT_ABI_VERSION);
}

TEST(AgentC, ABadConfigIsToldByTheFirstCall) {
  relibra_agent_config config = GoodConfig();
  config.experts = 5;
  const Handle handle(config);
  ASSERT_NE(handle.get(), nullptr);
  EXPECT_EQ(relibra_agent_join(handle.get(), nullptr, 0, 1), RELIBRA_INVALID_ARGUMENT);
  EXPECT_THAT(handle.error(), HasSubstr("experts is 5"));
}

TEST(AgentC, CallsBeforeJoiningAreRefused) {
  const Handle handle(GoodConfig());
  EXPECT_EQ(relibra_agent_prefetch(handle.get(), 0, 0), RELIBRA_FAILED_PRECONDITION);
  EXPECT_THAT(handle.error(), HasSubstr("has not joined"));
  EXPECT_EQ(relibra_agent_buffer(handle.get(), 0, 0, 0), nullptr);
}

TEST(AgentC, NullHandlesAreErrorsNotCrashes) {
  EXPECT_EQ(relibra_agent_wait(nullptr, 0, 0), RELIBRA_INVALID_ARGUMENT);
  EXPECT_STREQ(relibra_agent_last_error(nullptr), "the agent is null");
  relibra_agent_free(nullptr);
  relibra_agent* agent = relibra_agent_new(nullptr);
  EXPECT_EQ(relibra_agent_wait(agent, 0, 0), RELIBRA_INVALID_ARGUMENT);
  relibra_agent_free(agent);
}

TEST(AgentC, ASuccessClearsTheLastError) {
  const Handle handle(GoodConfig());
  EXPECT_EQ(relibra_agent_register(handle.get(), 9, 0, 0, nullptr), RELIBRA_INVALID_ARGUMENT);
  EXPECT_NE(handle.error(), "");
  std::vector<char> memory(64);
  EXPECT_EQ(relibra_agent_register(handle.get(), 0, 0, 0, memory.data()), RELIBRA_OK);
  EXPECT_EQ(handle.error(), "");
}

TEST(AgentC, ACallerWithAShorterConfigKeepsTheDefaultsOfTheRest) {
  // As if the header had ended before the timeouts.
  relibra_agent_config config = GoodConfig();
  config.size = offsetof(relibra_agent_config, plan_timeout);
  config.chunk_bytes = 0xdead;
  const Handle handle(config);
  std::vector<char> memory(64);
  EXPECT_EQ(relibra_agent_register(handle.get(), 0, 0, 0, memory.data()), RELIBRA_OK)
      << handle.error();
}

// One rank's life without a plan: everything works, every token goes home.
void LiveWithoutPlans(int rank, const std::string& planner) {
  relibra_agent_config config = GoodConfig();
  config.planner = planner.c_str();
  config.rank = rank;
  const Handle handle(config);
  relibra_agent* agent = handle.get();
  std::vector<char> mine(64);
  ASSERT_EQ(relibra_agent_register(agent, 0, 0, 0, mine.data()), RELIBRA_OK) << handle.error();
  // Experts lie the other way round than in order.
  const int32_t homes[] = {1, 1, 0, 0, 1, 0, 0, 1};
  ASSERT_EQ(relibra_agent_join(agent, homes, 0, 30), RELIBRA_OK) << handle.error();
  EXPECT_EQ(relibra_agent_buffer(agent, 0, 0, 0), mine.data());
  EXPECT_NE(relibra_agent_buffer(agent, 1, 2, 0), nullptr);
  EXPECT_EQ(relibra_agent_buffer(agent, 1, 3, 0), nullptr);
  int32_t home_rank[8];
  int32_t home_slot[8];
  ASSERT_EQ(relibra_agent_placement(agent, home_rank, home_slot), RELIBRA_OK);
  EXPECT_THAT(home_rank, ElementsAre(1, 1, 0, 0, 1, 0, 0, 1));

  relibra_step_start start;
  char reason[64];
  ASSERT_EQ(
      relibra_agent_begin_step(agent, 0, 0, nullptr, &start, sizeof(start), reason, sizeof(reason)),
      RELIBRA_OK)
      << handle.error();
  EXPECT_EQ(start.applied, 0);
  EXPECT_THAT(reason, HasSubstr("no plan for step 0"));
  ASSERT_EQ(relibra_agent_prefetch(agent, 0, 0), RELIBRA_OK) << handle.error();
  ASSERT_EQ(relibra_agent_wait(agent, 0, 0), RELIBRA_OK) << handle.error();
  const uint8_t ids[] = {0, 2, 3, 0};
  int32_t ranks[4];
  int32_t slots[4];
  int32_t rows[4];
  int64_t counts[6];
  uint64_t unplanned = 99;
  ASSERT_EQ(
      relibra_agent_map(agent, 0, 0, ids, RELIBRA_U8, 2, 2, ranks, slots, rows, counts, &unplanned),
      RELIBRA_OK)
      << handle.error();
  EXPECT_THAT(ranks, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(unplanned, 0u);
  int32_t instances = 0;
  const int32_t* offsets = nullptr;
  const int32_t* instance_rank = nullptr;
  const int32_t* instance_slot = nullptr;
  const uint32_t* quota = nullptr;
  ASSERT_EQ(relibra_agent_instances(agent, 1, 0, &instances, &offsets, &instance_rank,
                                    &instance_slot, &quota),
            RELIBRA_OK);
  EXPECT_EQ(instances, 4);
  EXPECT_EQ(instance_rank[3], 1);
  ASSERT_EQ(relibra_agent_reduce_gradients(agent, 0, 0), RELIBRA_OK) << handle.error();
  EXPECT_EQ(relibra_agent_reduce_gradients(agent, 0, 0), RELIBRA_FAILED_PRECONDITION);
  EXPECT_EQ(relibra_agent_prefetch(agent, 2, 0), RELIBRA_INVALID_ARGUMENT);
  const uint32_t computed[] = {4};
  ASSERT_EQ(relibra_agent_end_step(agent, 1, computed, 1), RELIBRA_OK) << handle.error();
}

TEST(AgentC, TwoRanksLiveThroughAStepWithoutPlans) {
  // A process of its own: the library brings its own copy of the protobuf messages.
  relibra::ChildProcess planner({TWO_RANK_PLANNER});
  ASSERT_TRUE(planner.AwaitError("\n"));
  const std::string address = "127.0.0.1:" + std::to_string(std::stoi(planner.Error()));
  std::thread other([&] { LiveWithoutPlans(1, address); });
  LiveWithoutPlans(0, address);
  other.join();
}

}  // namespace

// The self-test's model trained by 2 x 4 threads with plans drawn at random, against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/worker_agent/agent_group.h"
#include "tests/worker_agent/random_plan.h"
#include "worker_agent/selftest/comparison.h"
#include "worker_agent/selftest/trainer.h"

namespace relibra::agent::selftest {
namespace {

struct RunOptions {
  Scenario scenario = {};
  int steps = 3;
  Sabotage sabotage = Sabotage::kNone;
  transport::InProcessOptions transport = {};
  RandomPlanOptions plans = {};
  uint64_t plan_seed = 1;
};

struct RunResult {
  Errors errors;
  int moves = 0;
  int bridges = 0;
  int replicas = 0;
  bool work_as_planned = true;
  std::vector<std::vector<float>> final_weights;  // of every home slot of every rank
};

RunResult TrainWithRandomPlans(const RunOptions& options) {
  const Scenario& scenario = options.scenario;
  const GroupShape shape = scenario.Shape();
  std::mt19937_64 random(options.plan_seed);
  std::vector<FakePlanSource> sources(shape.ranks());
  RunResult result;
  Placement placement = Placement::Linear(shape);
  for (int step = 0; step < options.steps; ++step) {
    RandomPlanOptions plan_options = options.plans;
    plan_options.step = step;
    const v1::Plan message =
        RandomPlan(shape, placement, ScenarioLoads(scenario, step), plan_options, random);
    std::vector<std::vector<int32_t>> homes;
    for (const v1::LayerPlan& layer : message.layers()) {
      homes.emplace_back(layer.home_rank().begin(), layer.home_rank().end());
      for (const v1::MicroBatchPlan& m : layer.micro_batches())
        result.replicas += m.replicas_size();
    }
    placement = placement.WithHomes(homes).value();
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      sources[rank].Put(step, ReadPlan(message, shape, rank));
    }
  }

  auto group = transport::InProcessGroup::Create(shape.ranks(), options.transport);
  Reference reference(scenario);
  absl::Mutex mutex;
  std::vector<std::unique_ptr<transport::Transport>> transports;
  transports.reserve(shape.ranks());
  std::vector<std::unique_ptr<Agent>> agents(shape.ranks());
  std::vector<std::unique_ptr<Trainer>> trainers(shape.ranks());
  for (int r = 0; r < shape.ranks(); ++r) transports.push_back(group->Attach(r));
  OnThreads(shape.ranks(), [&](int rank) {
    auto agent =
        Agent::Create({}, *transports[rank], sources[rank], MakeStore(scenario, rank).value(),
                      Placement::Linear(shape), absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(agent.ok()) << agent.status();
    agents[rank] = *std::move(agent);
    trainers[rank] = std::make_unique<Trainer>(scenario, *agents[rank], *transports[rank],
                                               options.sabotage, absl::Seconds(60));
  });
  for (int step = 0; step < options.steps; ++step) {
    OnThreads(shape.ranks(), [&](int rank) {
      const auto start = agents[rank]->BeginStep({.step = static_cast<uint32_t>(step)});
      ASSERT_TRUE(start.ok()) << start.status();
      EXPECT_TRUE(start->applied) << start->reason;
      if (rank == 0) {
        result.moves += start->moves;
        result.bridges += start->bridges;
      }
      const std::vector<uint32_t> work = ExpectedWork(
          scenario, LoadsOf(scenario, step), agents[rank]->placement(), agents[rank]->plan());
      const absl::Status trained = trainers[rank]->Train(step);
      ASSERT_TRUE(trained.ok()) << trained;
      absl::MutexLock lock(&mutex);
      for (size_t i = 0; i < trainers[rank]->computed().size(); ++i) {
        result.work_as_planned &= trainers[rank]->computed()[i] == work[i * shape.ranks() + rank];
      }
    });
    reference.Train(step);
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      result.errors.Take(Compare(scenario, rank, *agents[rank], *trainers[rank], reference));
    }
  }
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    for (int l = 0; l < shape.layers(); ++l) {
      for (int slot = 0; slot < shape.home_slots(); ++slot) {
        const auto* w = reinterpret_cast<const float*>(agents[rank]->store().Buffer(l, slot, 0));
        result.final_weights.emplace_back(w, w + agents[rank]->store().specs()[0].bytes / 4);
      }
    }
  }
  return result;
}

TEST(SelfTestInProcess, TrainingWithMovesReplicasAndBridgesEqualsTheReference) {
  const RunResult result = TrainWithRandomPlans({});
  EXPECT_LE(result.errors.Largest(), 1e-5);
  EXPECT_TRUE(result.work_as_planned);
  EXPECT_GT(result.moves, 0);
  EXPECT_GT(result.replicas, 0);
  EXPECT_GT(result.bridges, 0);
}

TEST(SelfTestInProcess, TheSameHoldsWithoutOneSidedGets) {
  const RunResult result = TrainWithRandomPlans({.transport = {.one_sided_get = false}});
  EXPECT_LE(result.errors.Largest(), 1e-5);
  EXPECT_TRUE(result.work_as_planned);
}

TEST(SelfTestInProcess, ManyShapesAndPlansEqualTheReference) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    Scenario scenario{.nodes = 1 + static_cast<int>(random() % 3),
                      .gpus_per_node = 1 + static_cast<int>(random() % 4),
                      .replica_slots = static_cast<int>(random() % 4),
                      .layers = 1 + static_cast<int>(random() % 2),
                      .hidden = 8,
                      .intermediate = 12,
                      .micro_batches = 1 + static_cast<int>(random() % 3),
                      .sequence_tokens = 1 + static_cast<int>(random() % 12),
                      .seed = seed};
    scenario.experts = scenario.ranks() * (1 + static_cast<int>(random() % 3));
    scenario.top_k = 1 + static_cast<int>(random() % std::min(4, scenario.experts));
    const RunResult result =
        TrainWithRandomPlans({.scenario = scenario, .steps = 2, .plan_seed = seed});
    EXPECT_LE(result.errors.Largest(), 1e-5)
        << "seed " << seed << ": outputs " << result.errors.outputs << ", gradients "
        << result.errors.gradients << ", weights " << result.errors.weights << ", momenta "
        << result.errors.momenta;
    EXPECT_TRUE(result.work_as_planned) << "seed " << seed;
  }
}

TEST(SelfTestInProcess, TwoRunsGiveTheSameBits) {
  EXPECT_EQ(TrainWithRandomPlans({}).final_weights, TrainWithRandomPlans({}).final_weights);
}

TEST(SelfTestInProcess, AWrongSplitIsSeen) {
  EXPECT_GT(TrainWithRandomPlans({.steps = 1, .sabotage = Sabotage::kWrongSplit}).errors.Largest(),
            1e-3);
}

TEST(SelfTestInProcess, ADroppedGradientIsSeen) {
  const RunResult result = TrainWithRandomPlans({.steps = 1, .sabotage = Sabotage::kDropGradient});
  EXPECT_LE(result.errors.outputs, 1e-5);
  EXPECT_GT(result.errors.gradients, 1e-3);
}

TEST(SelfTestInProcess, AGradientAddedTwiceIsSeen) {
  const RunResult result =
      TrainWithRandomPlans({.steps = 1, .sabotage = Sabotage::kDoubleGradient});
  EXPECT_LE(result.errors.outputs, 1e-5);
  EXPECT_GT(result.errors.gradients, 1e-3);
}

}  // namespace
}  // namespace relibra::agent::selftest

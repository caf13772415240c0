// The agreement under faults: who dies, or what is lost, when, and what each survivor does.
#include "worker_agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/worker_agent/agent_group.h"
#include "tests/worker_agent/random_plan.h"

namespace relibra::agent {
namespace {

using ::testing::HasSubstr;
using transport::Fault;
using transport::InProcessGroup;
using transport::InProcessOptions;

GroupShape SmallShape() {
  return {.nodes = 2, .gpus_per_node = 2, .replica_slots = 1, .experts = 8, .layer_ids = {4, 9}};
}

std::vector<BufferSpec> SmallBuffers() {
  return {{"weight", FloatType::kFp32, 400, BufferRole::kWeight},
          {"state", FloatType::kFp32, 800, BufferRole::kOptimizerState},
          {"gradient", FloatType::kFp32, 400, BufferRole::kGradient}};
}

// What every float of an expert's buffer holds, so that a lost or misplaced expert shows.
float Mark(int layer, int expert, int buffer) {
  return static_cast<float>(1000 * layer + 10 * expert + buffer + 1);
}

void WriteMarks(Agent& agent) {
  const GroupShape& shape = agent.store().shape();
  for (int l = 0; l < shape.layers(); ++l) {
    const std::vector<int> experts = agent.placement().ExpertsOf(l, agent.store().rank());
    for (int slot = 0; slot < shape.home_slots(); ++slot) {
      for (int b = 0; b < 2; ++b) {
        auto* data = reinterpret_cast<float*>(agent.store().Buffer(l, slot, b));
        std::fill_n(data, agent.store().specs()[b].bytes / 4, Mark(l, experts[slot], b));
      }
    }
  }
}

bool MarksAreRight(Agent& agent) {
  const GroupShape& shape = agent.store().shape();
  for (int l = 0; l < shape.layers(); ++l) {
    const std::vector<int> experts = agent.placement().ExpertsOf(l, agent.store().rank());
    for (int slot = 0; slot < shape.home_slots(); ++slot) {
      for (int b = 0; b < 2; ++b) {
        const auto* data = reinterpret_cast<const float*>(agent.store().Buffer(l, slot, b));
        for (size_t i = 0; i < agent.store().specs()[b].bytes / 4; ++i) {
          if (data[i] != Mark(l, experts[slot], b)) return false;
        }
      }
    }
  }
  return true;
}

// Four ranks with a plan for step 0 that moves homes, makes replicas and a bridge.
class Group {
 public:
  explicit Group(uint64_t seed = 1, AgentOptions options = {}) : options_(options), sources_(4) {
    const GroupShape shape = SmallShape();
    std::mt19937_64 random(seed);
    const std::vector<std::vector<std::vector<std::vector<uint32_t>>>> loads(
        2, std::vector<std::vector<std::vector<uint32_t>>>(
               2, std::vector<std::vector<uint32_t>>(4, std::vector<uint32_t>(8, 5))));
    const Placement linear = Placement::Linear(shape);
    do {
      message_ = RandomPlan(shape, linear, loads, {.step = 0}, random);
      after_ = linear.WithHomes(Homes(message_)).value();
    } while (linear.MovesTo(after_).size() < 4);
    for (int rank = 0; rank < 4; ++rank) {
      sources_[rank].Put(0, ReadPlan(message_, shape, rank));
      sources_[rank].Put(1, ReadPlan(Renamed(message_, 1), shape, rank));
    }
  }

  // Every rank joins, or joins anew. Faults count from the first operation of joining.
  void Join(const InProcessOptions& transport) {
    for (auto& agent : agents_) {
      if (agent != nullptr) agent->Leave();
    }
    transports_.clear();
    network_ = InProcessGroup::Create(4, transport);
    for (int r = 0; r < 4; ++r) transports_.push_back(network_->Attach(r));
    OnThreads(4, [&](int rank) {
      if (agents_[rank] != nullptr) {
        const absl::Status s = agents_[rank]->Rejoin(*transports_[rank], Late());
        ASSERT_TRUE(s.ok()) << s;
        return;
      }
      auto store = ExpertStore::Create(SmallShape(), rank, SmallBuffers()).value();
      store->AllocateMissing();
      auto agent = Agent::Create(options_, *transports_[rank], sources_[rank], std::move(store),
                                 Placement::Linear(SmallShape()), Late());
      ASSERT_TRUE(agent.ok()) << agent.status();
      agents_[rank] = *std::move(agent);
      WriteMarks(*agents_[rank]);
    });
  }

  // BeginStep on every rank, and EndStep where it began.
  std::vector<absl::StatusOr<StepStart>> BeginStep(uint32_t step) {
    std::vector<absl::StatusOr<StepStart>> starts(4, absl::UnknownError("not run"));
    OnThreads(4, [&](int rank) { starts[rank] = agents_[rank]->BeginStep({.step = step}); });
    return starts;
  }

  // Prefetch, Wait, ReduceGradients and EndStep of everything, on every rank.
  std::vector<absl::Status> FinishStep() {
    std::vector<absl::Status> statuses(4);
    OnThreads(4, [&](int rank) {
      Agent& agent = *agents_[rank];
      absl::Status& s = statuses[rank];
      for (int m = 0; m < 2 && s.ok(); ++m) {
        for (int l = 0; l < 2 && s.ok(); ++l) s = agent.Prefetch(l, m);
        for (int l = 0; l < 2 && s.ok(); ++l) s = agent.Wait(l, m);
        for (int l = 1; l >= 0 && s.ok(); --l) s = agent.ReduceGradients(l, m);
      }
      if (s.ok()) s = agent.EndStep({});
    });
    return statuses;
  }

  static absl::Time Late() { return absl::Now() + absl::Seconds(60); }
  static std::vector<std::vector<int32_t>> Homes(const v1::Plan& message) {
    std::vector<std::vector<int32_t>> homes;
    for (const v1::LayerPlan& layer : message.layers()) {
      homes.emplace_back(layer.home_rank().begin(), layer.home_rank().end());
    }
    return homes;
  }
  static v1::Plan Renamed(v1::Plan message, uint32_t step) {
    message.set_step(step);
    message.set_digest("another digest");
    return message;
  }

  Agent& agent(int rank) { return *agents_[rank]; }
  FakePlanSource& source(int rank) { return sources_[rank]; }
  const Placement& after() const { return after_; }
  const v1::Plan& message() const { return message_; }
  InProcessGroup& network() { return *network_; }
  static Placement Before() { return Placement::Linear(SmallShape()); }

 private:
  const AgentOptions options_;
  v1::Plan message_;
  Placement after_ = Placement::Linear(SmallShape());
  std::vector<FakePlanSource> sources_;
  std::shared_ptr<InProcessGroup> network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::unique_ptr<Agent> agents_[4];
};

AgentOptions Quick() {
  return {.plan_timeout = absl::Milliseconds(50),
          .group_timeout = absl::Milliseconds(300),
          .move_timeout = absl::Milliseconds(100),
          .exchange_timeout = absl::Milliseconds(100)};
}

TEST(Agent, AppliesAPlanOnEveryRankAndEveryExpertArrivesWhole) {
  Group group;
  group.Join({});
  for (const auto& start : group.BeginStep(0)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_TRUE(start->applied) << start->reason;
    EXPECT_EQ(start->moves, static_cast<int>(Group::Before().MovesTo(group.after()).size()));
    EXPECT_EQ(start->micro_batches, 2);
  }
  for (const absl::Status& s : group.FinishStep()) EXPECT_TRUE(s.ok()) << s;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.agent(rank).placement().HomeRanks(), group.after().HomeRanks());
    EXPECT_TRUE(MarksAreRight(group.agent(rank)));
    ASSERT_EQ(group.source(rank).reports().size(), 1u);
    EXPECT_EQ(group.source(rank).reports()[0].outcome(), v1::STEP_OUTCOME_APPLIED);
  }
}

TEST(Agent, APlanForHomesThatItHasAlreadyMovesNothing) {
  Group group;
  group.Join({});
  group.BeginStep(0);
  group.FinishStep();
  for (const auto& start : group.BeginStep(1)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_TRUE(start->applied);
    EXPECT_EQ(start->moves, 0);
  }
}

TEST(Agent, OneRankWithoutAPlanMakesAllKeepTheirPlacement) {
  Group group(1, Quick());
  group.Join({});
  group.source(2).Put(0, absl::DeadlineExceededError("no plan came in time"));
  const auto starts = group.BeginStep(0);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(starts[rank].ok()) << starts[rank].status();
    EXPECT_FALSE(starts[rank]->applied);
    EXPECT_THAT(starts[rank]->reason, HasSubstr("rank 2"));
    EXPECT_EQ(group.agent(rank).placement(), Group::Before());
    EXPECT_TRUE(MarksAreRight(group.agent(rank)));
  }
  // The step is trained all the same, and the next plan is applied.
  for (const absl::Status& s : group.FinishStep()) EXPECT_TRUE(s.ok()) << s;
  for (const auto& start : group.BeginStep(1)) EXPECT_TRUE(start->applied);
}

TEST(Agent, PlansThatDifferMakeAllKeepTheirPlacement) {
  Group group(1, Quick());
  group.Join({});
  v1::Plan other = group.message();
  other.set_digest("not the others' digest");
  group.source(3).Put(0, ReadPlan(other, SmallShape(), 3));
  for (const auto& start : group.BeginStep(0)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_FALSE(start->applied);
    EXPECT_THAT(start->reason, HasSubstr("rank 3 holds another plan"));
  }
}

TEST(Agent, LittleSpareMemoryMakesMoreRoundsOfTheSameMoves) {
  AgentOptions options;
  options.max_spare_bytes = 1536;  // one expert: 400 bytes and 800, each on a multiple of 256
  Group group(1, options);
  group.Join({});
  for (const auto& start : group.BeginStep(0)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_TRUE(start->applied) << start->reason;
    EXPECT_GT(start->rounds, 1);
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.agent(rank).placement().HomeRanks(), group.after().HomeRanks());
    EXPECT_TRUE(MarksAreRight(group.agent(rank)));
    EXPECT_LE(group.agent(rank).store().spare_bytes(), 1536u);
  }
}

TEST(Agent, AFaultInALaterRoundTakesTheEarlierOnesBack) {
  AgentOptions options = Quick();
  options.max_spare_bytes = 1536;
  int undone = 0;
  // The k-th get of some rank: of the first round for low k, of later ones for high k.
  for (int64_t k = 0; k < 12; ++k) {
    for (int rank = 0; rank < 4; ++rank) {
      Group group(1, options);
      group.Join({.faults = {{.kind = Fault::Kind::kCorrupt,
                              .rank = rank,
                              .operation = Fault::Operation::kGet,
                              .at = k}}});
      const auto starts = group.BeginStep(0);
      for (int r = 0; r < 4; ++r) {
        ASSERT_TRUE(starts[r].ok()) << starts[r].status();
        EXPECT_EQ(starts[r]->applied, group.network().faults_injected() == 0);
        EXPECT_EQ(group.agent(r).placement().HomeRanks(),
                  (starts[r]->applied ? group.after() : Group::Before()).HomeRanks());
        EXPECT_TRUE(MarksAreRight(group.agent(r)));
      }
      // With room for one expert a round brings a rank at most two buffers: later gets are of later
      // rounds.
      if (k >= 2 && group.network().faults_injected() == 1) ++undone;
    }
  }
  EXPECT_GT(undone, 0);
}

TEST(Agent, APlanThatNeedsTooMuchSpareMemoryIsNotApplied) {
  AgentOptions options = Quick();
  options.max_spare_bytes = 100;
  Group group(1, options);
  group.Join({});
  for (const auto& start : group.BeginStep(0)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_FALSE(start->applied);
  }
}

TEST(Agent, ACorruptedMoveIsSeenAndNobodySwitches) {
  Group group(1, Quick());
  // The first get of a rank that has incoming experts.
  const int receiver = Group::Before().MovesTo(group.after())[0].to_rank;
  group.Join({.faults = {{.kind = Fault::Kind::kCorrupt,
                          .rank = receiver,
                          .operation = Fault::Operation::kGet,
                          .at = 0}}});
  const auto starts = group.BeginStep(0);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(starts[rank].ok()) << starts[rank].status();
    EXPECT_FALSE(starts[rank]->applied);
    EXPECT_EQ(group.agent(rank).placement(), Group::Before());
    EXPECT_TRUE(MarksAreRight(group.agent(rank)));
  }
  EXPECT_THAT(starts[receiver]->reason, HasSubstr("checksum"));
  EXPECT_EQ(group.network().faults_injected(), 1);
  // The fault was of the moment: the same plan is applied the next time.
  for (const absl::Status& s : group.FinishStep()) EXPECT_TRUE(s.ok()) << s;
  for (const auto& start : group.BeginStep(1)) EXPECT_TRUE(start->applied) << start->reason;
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(MarksAreRight(group.agent(rank)));
}

TEST(Agent, AGetThatNeverCompletesMakesAllKeepTheirPlacement) {
  Group group(1, Quick());
  const int receiver = Group::Before().MovesTo(group.after())[0].to_rank;
  group.Join({.faults = {{.kind = Fault::Kind::kDrop,
                          .rank = receiver,
                          .operation = Fault::Operation::kGet,
                          .at = 0}}});
  for (const auto& start : group.BeginStep(0)) {
    ASSERT_TRUE(start.ok()) << start.status();
    EXPECT_FALSE(start->applied);
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(MarksAreRight(group.agent(rank)));
}

TEST(Agent, CallsInTheWrongOrderAreRefused) {
  Group group;
  group.Join({});
  EXPECT_EQ(group.agent(0).Prefetch(0, 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(group.agent(0).EndStep({}).code(), absl::StatusCode::kFailedPrecondition);
  group.BeginStep(0);
  EXPECT_EQ(group.agent(0).BeginStep({.step = 1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(group.agent(0).ReduceGradients(0, 0).code(), absl::StatusCode::kFailedPrecondition);
  for (const absl::Status& s : group.FinishStep()) EXPECT_TRUE(s.ok()) << s;
}

// What became of a run with one fault: see the test below.
struct Tally {
  int applied = 0;
  int kept = 0;
  int broken = 0;
  int in_doubt = 0;
  int faults = 0;
};

// One step with one fault, whatever it is; then, if the group broke, a new group and another step.
Tally RunWithFault(uint64_t round) {
  std::mt19937_64 random(round);
  Tally tally;
  Group group(round % 7 + 1, {.plan_timeout = absl::Milliseconds(50),
                              .group_timeout = absl::Seconds(1),
                              .move_timeout = absl::Milliseconds(400),
                              .exchange_timeout = absl::Milliseconds(400),
                              // Half of the rounds with so little that the moves take several.
                              .max_spare_bytes = round % 2 == 0 ? 1536 : ~uint64_t{0}});
  // Joining takes 9 operations of each rank.
  const Fault fault{.kind = static_cast<Fault::Kind>(random() % 4),
                    .rank = static_cast<int>(random() % 4),
                    .at = static_cast<int64_t>(9 + random() % 40),
                    .delay = absl::Milliseconds(static_cast<int64_t>(random() % 600))};
  group.Join({.faults = {fault}, .detects_peer_death = random() % 2 == 0});
  const auto starts = group.BeginStep(0);
  int applied = 0;
  int kept = 0;
  for (int rank = 0; rank < 4; ++rank) {
    if (starts[rank].ok()) (starts[rank]->applied ? applied : kept) += 1;
    tally.in_doubt += group.agent(rank).in_doubt() ? 1 : 0;
    EXPECT_TRUE(MarksAreRight(group.agent(rank))) << "round " << round << ", rank " << rank;
  }
  // Some may know that they switched, or kept, while others only know that the group is broken; but
  // never both.
  EXPECT_TRUE(applied == 0 || kept == 0) << "round " << round;
  bool broken = applied + kept < 4;
  if (!broken) {
    for (const absl::Status& s : group.FinishStep()) broken |= !s.ok();
  }
  tally.faults = static_cast<int>(group.network().faults_injected());
  (broken ? tally.broken : applied > 0 ? tally.applied : tally.kept) += 1;
  if (broken) {
    // The processes all live: a rank that "died" was cut off, and comes back.
    group.Join({});
    for (const auto& start : group.BeginStep(1)) {
      EXPECT_TRUE(start.ok() && start->applied) << "round " << round << ": " << start.status();
    }
    for (const absl::Status& s : group.FinishStep()) EXPECT_TRUE(s.ok()) << s;
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.agent(rank).placement(), group.agent(0).placement()) << "round " << round;
    EXPECT_TRUE(MarksAreRight(group.agent(rank))) << "round " << round << ", rank " << rank;
  }
  return tally;
}

// Rounds mostly wait for deadlines, so many run side by side.
TEST(Agent, NoFaultSplitsTheGroupOrLosesAWeight) {
  constexpr int kRounds = 1300;
  constexpr int kSideBySide = 40;
  absl::Mutex mutex;
  Tally sum;
  OnThreads(kSideBySide, [&](int first) {
    for (int round = first; round < kRounds; round += kSideBySide) {
      const Tally tally = RunWithFault(round);
      absl::MutexLock lock(&mutex);
      sum.applied += tally.applied;
      sum.kept += tally.kept;
      sum.broken += tally.broken;
      sum.in_doubt += tally.in_doubt;
      sum.faults += tally.faults;
    }
  });
  std::printf(
      "%d faults in %d rounds: %d plans applied, %d not applied, %d groups broken and "
      "formed anew; %d ranks in doubt, all settled; 0 split groups, 0 lost weights\n",
      sum.faults, kRounds, sum.applied, sum.kept, sum.broken, sum.in_doubt);
  EXPECT_GT(sum.faults, kRounds / 2);
  EXPECT_GT(sum.broken, 0);
  EXPECT_GT(sum.kept, 0);
  EXPECT_GT(sum.in_doubt, 0);
}

}  // namespace
}  // namespace relibra::agent

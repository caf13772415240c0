#include "worker_agent/selftest/selftest.h"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker_agent/planner_client.h"
#include "worker_agent/selftest/comparison.h"
#include "worker_agent/selftest/dying_transport.h"
#include "worker_agent/selftest/orchestrator.h"
#include "worker_agent/selftest/reference.h"
#include "worker_agent/session.h"
#include "worker_agent/transport/ucx.h"

namespace relibra::agent::selftest {
namespace {

// One rank's run. Its members are made in order, each from those before it.
class Run {
 public:
  explicit Run(const SelfTestOptions& options)
      : options_(options), scenario_(options.scenario), reference_(options.scenario) {}

  absl::Status Join();
  absl::Status Steps();
  // The line that is printed; fills in whether the run passed.
  nlohmann::json Summary(const absl::Status& status, bool& passed);

 private:
  absl::Status Step(int step);
  absl::Status AskForPlan(int step);
  absl::Status GatherImbalance(const std::vector<uint32_t>& expected);

  const SelfTestOptions options_;
  const Scenario scenario_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Orchestrator> orchestrator_;
  // The session's; null until this rank has joined.
  transport::Transport* transport_ = nullptr;
  Agent* agent_ = nullptr;
  std::unique_ptr<Trainer> trainer_;
  Reference reference_;

  // What the run amounted to.
  Errors errors_;
  int steps_done_ = 0;
  int applied_ = 0;
  int64_t moves_ = 0;
  int64_t moves_in_ = 0;
  int64_t bridges_ = 0;
  int64_t replicas_ = 0;
  uint64_t moved_bytes_ = 0;
  uint64_t replica_bytes_ = 0;
  uint64_t gradient_bytes_ = 0;
  uint64_t unplanned_ = 0;
  double move_seconds_ = 0;
  double agree_seconds_ = 0;
  double replica_seconds_ = 0;
  double train_seconds_ = 0;
  bool work_as_planned_ = true;
  std::vector<double> before_;
  std::vector<double> after_;
  std::vector<std::string> kept_reasons_;
};

absl::Status Run::Join() {
  const absl::Time deadline = absl::Now() + options_.join_timeout;
  auto transport =
      transport::CreateUcxTransport({.rank = options_.rank,
                                     .size = scenario_.ranks(),
                                     .transports = options_.transports,
                                     .net_devices = options_.net_devices,
                                     .peer_error_handling = options_.peer_error_handling});
  if (!transport.ok()) return transport.status();
  if (options_.die_at_fetch > 0) {
    transport = std::make_unique<DyingTransport>(*std::move(transport), options_.die_at_fetch);
  }
  const PlannerClientOptions group{.planner = options_.planner,
                                   .job = options_.job,
                                   .rank = options_.rank,
                                   .shape = scenario_.Shape()};
  auto planner = std::make_unique<PlannerClient>(group);
  orchestrator_ = std::make_unique<Orchestrator>(planner->stub(), scenario_, options_.job);
  if (absl::Status s = orchestrator_->Register(deadline); !s.ok()) return s;
  auto store = MakeStore(scenario_, options_.rank);
  if (!store.ok()) return store.status();
  auto session = Session::Join(group, std::move(planner), *std::move(transport), *std::move(store),
                               Placement::Linear(scenario_.Shape()), options_.agent,
                               /*from_step=*/0, deadline);
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  transport_ = &session_->transport();
  agent_ = &session_->agent();
  trainer_ = std::make_unique<Trainer>(scenario_, *agent_, *transport_, options_.sabotage,
                                       options_.agent.exchange_timeout);
  return absl::OkStatus();
}

// The planner is only advice: a step whose plan cannot be had is trained all the same.
absl::Status Run::AskForPlan(int step) {
  if (step >= options_.planned_steps) return absl::OkStatus();
  const absl::Duration patience = options_.agent.plan_timeout;
  const absl::Status streamed =
      orchestrator_->StreamRoutes(step, options_.rank, absl::Now() + patience);
  if (!streamed.ok()) kept_reasons_.push_back(std::string(streamed.message()));
  if (absl::Status s = transport_->Barrier(absl::Now() + options_.agent.group_timeout); !s.ok()) {
    return s;
  }
  if (options_.rank != 0) return absl::OkStatus();
  const absl::Status planned = orchestrator_->PlanStep(step, absl::Now() + patience);
  if (!planned.ok()) kept_reasons_.push_back(std::string(planned.message()));
  return absl::OkStatus();
}

absl::Status Run::GatherImbalance(const std::vector<uint32_t>& expected) {
  const std::vector<uint64_t> mine(trainer_->computed().begin(), trainer_->computed().end());
  auto all = transport_->AllGather(mine, absl::Now() + options_.agent.group_timeout);
  if (!all.ok()) return all.status();
  std::vector<uint32_t> work(all->size());
  for (int r = 0; r < scenario_.ranks(); ++r) {
    for (size_t i = 0; i < mine.size(); ++i) {
      work[i * scenario_.ranks() + r] = static_cast<uint32_t>((*all)[r * mine.size() + i]);
    }
  }
  work_as_planned_ &= work == expected;
  after_.push_back(Imbalance(work, scenario_.ranks()));
  return absl::OkStatus();
}

absl::Status Run::Step(int step) {
  if (absl::Status s = AskForPlan(step); !s.ok()) return s;
  const std::vector<uint32_t> loads = LoadsOf(scenario_, step);
  before_.push_back(
      Imbalance(ExpectedWork(scenario_, loads, agent_->placement(), nullptr), scenario_.ranks()));
  const absl::Time start = absl::Now();
  auto began = agent_->BeginStep({.step = static_cast<uint32_t>(step)});
  if (!began.ok()) return began.status();
  applied_ += began->applied ? 1 : 0;
  moves_ += began->moves;
  moves_in_ += began->moves_in;
  bridges_ += began->bridges;
  if (!began->applied) kept_reasons_.push_back(began->reason);
  if (agent_->plan() != nullptr) {
    for (const LayerPlan& layer : agent_->plan()->layers) {
      for (const MicroBatchPlan& m : layer.micro_batches) {
        for (const Replica& r : m.replicas) replicas_ += r.bridge ? 0 : 1;
      }
    }
  }
  const std::vector<uint32_t> expected =
      ExpectedWork(scenario_, loads, agent_->placement(), agent_->plan());
  if (absl::Status s = trainer_->Train(step); !s.ok()) return s;
  train_seconds_ += absl::ToDoubleSeconds(absl::Now() - start);
  const v1::StepReport& report = agent_->report();
  moved_bytes_ += report.moved_bytes();
  replica_bytes_ += report.replica_bytes();
  gradient_bytes_ += report.gradient_bytes();
  unplanned_ += report.unplanned_tokens();
  move_seconds_ += report.move_seconds();
  agree_seconds_ += report.agree_seconds();
  replica_seconds_ += report.replica_seconds();

  reference_.Train(step);
  errors_.Take(Compare(scenario_, options_.rank, *agent_, *trainer_, reference_));
  ++steps_done_;
  if (absl::Status s = GatherImbalance(expected); !s.ok()) return s;
  spdlog::info("rank {}, step {}: {}, {} homes moved, imbalance {:.3f} -> {:.3f}, error {:.1e}",
               options_.rank, step, began->applied ? "plan applied" : "old placement kept",
               began->moves, before_.back(), after_.back(), errors_.Largest());
  return absl::OkStatus();
}

absl::Status Run::Steps() {
  for (int step = 0; step < options_.steps; ++step) {
    if (absl::Status s = Step(step); !s.ok()) return s;
  }
  // Nobody leaves while others still need this rank.
  return transport_->Barrier(absl::Now() + options_.agent.group_timeout);
}

nlohmann::json Run::Summary(const absl::Status& status, bool& passed) {
  const bool equal = errors_.Largest() <= options_.tolerance;
  const bool changed = !options_.require_changes || (moves_ > 0 && replicas_ + bridges_ > 0);
  const bool applied = !options_.require_applied || applied_ == steps_done_;
  passed = status.ok() && equal && changed && applied && work_as_planned_;
  nlohmann::json line = {{"rank", options_.rank},
                         {"passed", passed},
                         {"error", status.ok() ? "" : status.ToString()},
                         {"steps", steps_done_},
                         {"steps_applied", applied_},
                         {"max_relative_error", errors_.Largest()},
                         {"output_error", errors_.outputs},
                         {"gradient_error", errors_.gradients},
                         {"weight_error", errors_.weights},
                         {"momentum_error", errors_.momenta},
                         {"tolerance", options_.tolerance},
                         {"computed_as_planned", work_as_planned_},
                         {"moves", moves_},
                         {"moves_in", moves_in_},
                         {"replicas", replicas_},
                         {"bridges", bridges_},
                         {"unplanned_tokens", unplanned_},
                         {"imbalance_before", before_},
                         {"imbalance_after", after_},
                         {"moved_bytes", moved_bytes_},
                         {"replica_bytes", replica_bytes_},
                         {"gradient_bytes", gradient_bytes_},
                         {"move_seconds", move_seconds_},
                         {"agree_seconds", agree_seconds_},
                         {"replica_seconds", replica_seconds_},
                         {"train_seconds", train_seconds_},
                         {"kept_reasons", kept_reasons_}};
  if (!status.ok() && agent_ != nullptr && trainer_ != nullptr) {
    // Whatever failed, this rank's home experts must be what the last whole step left.
    Errors errors = CompareExperts(scenario_, options_.rank, *agent_, reference_);
    line["weights_intact"] = errors.Largest() <= options_.tolerance;
  }
  if (!changed) line["missing"] = "the plans moved no home or made no replica";
  return line;
}

}  // namespace

int RunSelfTest(const SelfTestOptions& options, std::FILE* out) {
  absl::Status valid = Validate(options.scenario);
  if (valid.ok() && (options.rank < 0 || options.rank >= options.scenario.ranks())) {
    valid = absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, ", expected 0 to ", options.scenario.ranks() - 1));
  }
  if (!valid.ok()) {
    std::fprintf(stderr, "relibra-agent selftest: %s\n", std::string(valid.message()).c_str());
    return 2;
  }
  Run run(options);
  absl::Status status = run.Join();
  if (status.ok()) status = run.Steps();
  bool passed = false;
  const std::string line = run.Summary(status, passed).dump();
  std::fprintf(out, "%s\n", line.c_str());
  std::fflush(out);
  return passed ? 0 : 1;
}

}  // namespace relibra::agent::selftest

// relibra-agent: the worker agent as a process of its own. The library is what trainers link.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "worker_agent/selftest/selftest.h"
#include "worker_agent/serve.h"

namespace {

using relibra::agent::AgentOptions;
using relibra::agent::ServeOptions;
using relibra::agent::selftest::Sabotage;
using relibra::agent::selftest::SelfTestOptions;

std::atomic<bool> stop_requested = false;

// Standard output is for results: libraries that print there (UCX logs to it) are sent to standard
// error instead.
std::FILE* ClaimStandardOutput() {
  std::FILE* out = fdopen(dup(STDOUT_FILENO), "w");
  if (out == nullptr) return stdout;
  dup2(STDERR_FILENO, STDOUT_FILENO);
  return out;
}

void OnSignal(int) { stop_requested = true; }

// Seconds as flags carry them.
struct Timeouts {
  double plan = 10;
  double group = 300;
  double move = 60;
  double exchange = 60;
  double join = 300;

  void AddTo(CLI::App& app) {
    app.add_option("--plan-timeout", plan, "seconds a step waits for its plan")
        ->check(CLI::PositiveNumber);
    app.add_option("--group-timeout", group, "seconds the slowest rank may lag behind")
        ->check(CLI::PositiveNumber);
    app.add_option("--move-timeout", move, "seconds the moves of a step may take")
        ->check(CLI::PositiveNumber);
    app.add_option("--exchange-timeout", exchange, "seconds one exchange may take")
        ->check(CLI::PositiveNumber);
    app.add_option("--join-timeout", join, "seconds the group may take to come together")
        ->check(CLI::PositiveNumber);
  }
  void Set(AgentOptions& options) const {
    options.plan_timeout = absl::Seconds(plan);
    options.group_timeout = absl::Seconds(group);
    options.move_timeout = absl::Seconds(move);
    options.exchange_timeout = absl::Seconds(exchange);
  }
};

// Flags that both modes have.
template <typename Options>
void AddCommon(CLI::App& app, Options& options) {
  app.add_option("--planner", options.planner, "HOST:PORT of the planner")->required();
  app.add_option("--rank", options.rank, "rank in the EP group")
      ->required()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--transports", options.transports, "as in UCX_TLS, e.g. tcp,self");
  app.add_option("--net-devices", options.net_devices, "as in UCX_NET_DEVICES");
  app.add_option("--peer-error-handling", options.peer_error_handling,
                 "notice a peer's death at once (0: by deadline)");
  app.add_option("--max-spare-bytes", options.agent.max_spare_bytes,
                 "most spare memory for incoming experts");
  app.add_option("--chunk-bytes", options.agent.chunk_bytes, "size of one get")
      ->check(CLI::PositiveNumber);
}

void AddSelfTest(CLI::App& app, SelfTestOptions& options) {
  auto& s = options.scenario;
  app.add_option("--job", options.job, "name of the job");
  app.add_option("--nodes", s.nodes, "nodes");
  app.add_option("--gpus-per-node", s.gpus_per_node, "ranks a node");
  app.add_option("--replica-slots", s.replica_slots, "replica slots a rank");
  app.add_option("--layers", s.layers, "MoE layers");
  app.add_option("--experts", s.experts, "experts a layer");
  app.add_option("--top-k", s.top_k, "experts a token");
  app.add_option("--hidden", s.hidden, "hidden size");
  app.add_option("--intermediate", s.intermediate, "intermediate size of an expert");
  app.add_option("--micro-batches", s.micro_batches, "micro-batches a step");
  app.add_option("--sequences", s.sequences, "sequences of a rank in a micro-batch");
  app.add_option("--sequence-tokens", s.sequence_tokens, "tokens a sequence");
  app.add_option("--skew", s.skew, "standard deviation of the experts' popularity logits");
  app.add_option("--seed", s.seed, "seed of weights, data and routing");
  app.add_option("--steps", options.steps, "training steps")->check(CLI::PositiveNumber);
  app.add_option("--planned-steps", options.planned_steps,
                 "ask for plans of the first so many steps only");
  app.add_option("--tolerance", options.tolerance, "largest relative error");
  app.add_flag("--allow-no-changes{false}", options.require_changes,
               "pass even if no home moved and no replica was made");
  app.add_flag("--allow-kept{false}", options.require_applied,
               "pass even if a step kept its old placement");
  app.add_option("--die-at-fetch", options.die_at_fetch, "kill this process at its k-th fetch");
  const std::map<std::string, Sabotage> sabotages = {
      {"none", Sabotage::kNone},
      {"wrong-split", Sabotage::kWrongSplit},
      {"drop-gradient", Sabotage::kDropGradient},
      {"double-gradient", Sabotage::kDoubleGradient}};
  app.add_option("--sabotage", options.sabotage, "make a mistake, to see that it is noticed")
      ->transform(CLI::CheckedTransformer(sabotages));
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("relibra-agent"));
  CLI::App app("ReLibra's worker agent");
  app.require_subcommand(1);
  // Of a flag given twice, the last one counts.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Timeouts timeouts;

  SelfTestOptions selftest;
  CLI::App& selftest_app =
      *app.add_subcommand("selftest", "train a small model and compare it with a reference");
  AddCommon(selftest_app, selftest);
  AddSelfTest(selftest_app, selftest);
  timeouts.AddTo(selftest_app);

  ServeOptions serve;
  CLI::App& serve_app = *app.add_subcommand("serve", "follow a job's plans with memory of its own");
  AddCommon(serve_app, serve);
  serve_app.add_option("--job", serve.job, "name of the job")->required();
  serve_app.add_option("--ep-group", serve.ep_group, "EP group");
  serve_app.add_option("--from-step", serve.from_step, "first step to follow");
  serve_app.add_option("--steps", serve.steps, "steps to follow; 0: until stopped");
  serve_app.add_option("--pass", serve.pass, "pass of the steps");
  timeouts.AddTo(serve_app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::fprintf(stderr, "relibra-agent: %s\n", error.what());
    return 2;
  }
  if (selftest_app.parsed()) {
    timeouts.Set(selftest.agent);
    selftest.join_timeout = absl::Seconds(timeouts.join);
    return relibra::agent::selftest::RunSelfTest(selftest, ClaimStandardOutput());
  }
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGINT, OnSignal);
  timeouts.Set(serve.agent);
  serve.join_timeout = absl::Seconds(timeouts.join);
  return relibra::agent::RunServe(serve, stop_requested);
}

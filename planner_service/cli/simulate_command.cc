// relibra simulate: compares policies on one recorded batch.

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner_service/baseline/baseline_plan.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/policies.h"
#include "planner_service/cli/text_table.h"
#include "planner_service/core/cost_model.h"
#include "planner_service/core/evaluate.h"
#include "planner_service/core/presets.h"

namespace relibra::cli {
namespace {

struct SimulateFlags {
  BatchFlags batch;
  PlannerFlags planner;
  std::string model = "qwen3-30b-a3b";
  std::string hardware = "h100";
  std::vector<std::string> policies = {"none", "eplb", "relibra", "ideal"};
  std::string format = "table";
  double exposure = 1;
  bool verify = false;
};

struct Setup {
  std::vector<Policy> policies;
  PlanOptions options;
  ModelPreset model;
  HardwarePreset hardware;
};

struct Outcome {
  PolicyResult result;
  StepTime time;
  double hidden_seconds = 0;  // the step's time if all copies and moves were hidden
  // Bytes of tokens that cross nodes, dispatch and combine, forward and backward.
  double cross_node_bytes = 0;
};

using Outcomes = std::map<Policy, Outcome>;

absl::StatusOr<Setup> SetupOf(const SimulateFlags& flags) {
  Setup setup;
  for (const std::string& name : flags.policies) {
    const absl::StatusOr<Policy> policy = PolicyOf(name);
    if (!policy.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--policies: ", policy.status().message()));
    }
    setup.policies.push_back(*policy);
  }
  const absl::StatusOr<PlanOptions> options = OptionsOf(flags.planner);
  if (!options.ok()) return options.status();
  setup.options = *options;
  const absl::StatusOr<ModelPreset> model = FindModel(flags.model);
  if (!model.ok()) return absl::InvalidArgumentError(absl::StrCat("--", model.status().message()));
  setup.model = *model;
  const absl::StatusOr<HardwarePreset> hardware = FindHardware(flags.hardware);
  if (!hardware.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", hardware.status().message()));
  }
  setup.hardware = *hardware;
  if (flags.format != "table" && flags.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: expected table or json, got \"", flags.format, "\""));
  }
  return setup;
}

Outcome OutcomeOf(PolicyResult result, const Setup& setup, const Topology& topology,
                  double exposure) {
  Outcome outcome{
      .result = std::move(result), .time = {}, .hidden_seconds = 0, .cross_node_bytes = 0};
  const ExpertSizes sizes = setup.model.Sizes();
  outcome.time = ModelStepTime(outcome.result, sizes, setup.hardware.Rates(), exposure);
  outcome.hidden_seconds = outcome.time.compute_seconds + outcome.time.all_to_all_seconds;
  constexpr double kPassesOfAllToAll = 4;
  for (const LayerWork& work : outcome.result.work) {
    outcome.cross_node_bytes +=
        kPassesOfAllToAll * sizes.token_bytes * work.mean_cross_node_rows * topology.num_ranks();
  }
  return outcome;
}

// Every policy, also those not asked for: throughputs are given against them.
absl::StatusOr<Outcomes> Simulate(const SimulateFlags& flags, const Setup& setup,
                                  const Batch& batch, int top_k, Progress& progress) {
  const Topology& topology = flags.batch.topology;
  const ThreadPool threads(flags.planner.threads);
  Outcomes outcomes;
  for (Policy policy : {Policy::kNone, Policy::kEplb, Policy::kRelibra}) {
    progress.Say(absl::StrCat("planning with ", NameOf(policy)));
    const absl::StatusOr<Plan> plan =
        PlanBatch(policy, batch, topology, setup.options, /*must_apply=*/false, threads);
    if (!plan.ok()) return plan.status();
    if (flags.verify && policy == Policy::kRelibra) {
      if (absl::Status s = VerifyPlan(policy, batch, *plan); !s.ok()) return s;
    }
    progress.Say(absl::StrCat("evaluating ", NameOf(policy)));
    PolicyResult result =
        Evaluate(NameOf(policy), batch.trace.loads, *plan,
                 {.top_k = top_k, .replicas_stay = policy == Policy::kEplb}, threads);
    outcomes[policy] = OutcomeOf(std::move(result), setup, topology, flags.exposure);
  }
  outcomes[Policy::kIdeal] = OutcomeOf(IdealResult(topology, outcomes[Policy::kNone].result), setup,
                                       topology, flags.exposure);
  return outcomes;
}

// Throughput of a policy against another's; 1 where there is no work at all.
double Speedup(const Outcomes& outcomes, Policy policy, Policy against) {
  const double time = outcomes.at(policy).time.total_seconds();
  return time == 0 ? 1 : outcomes.at(against).time.total_seconds() / time;
}

// The same against the ideal, if all copies and moves were hidden.
double HiddenShare(const Outcomes& outcomes, Policy policy) {
  const double time = outcomes.at(policy).hidden_seconds;
  return time == 0 ? 1 : outcomes.at(Policy::kIdeal).hidden_seconds / time;
}

void PrintTable(const SimulateFlags& flags, const Setup& setup, const Batch& batch, int top_k,
                const Outcomes& outcomes) {
  const LoadShape& shape = batch.trace.loads.shape();
  std::cout << absl::StrFormat(
      "%d layers, %d experts, %d micro-batches, %d x %d ranks, %d replica slots, %d pairs\n\n",
      shape.layers, shape.experts, shape.micro_batches, flags.batch.topology.nodes,
      flags.batch.topology.gpus_per_node, flags.batch.topology.replica_slots,
      outcomes.at(Policy::kNone).result.pairs);
  TextTable table({"policy", "imbalance", "p99", "nodes", "copies/node", "moves", "bridges",
                   "across GB", "step ms", "x none", "x eplb", "% ideal", "hidden"});
  for (Policy policy : setup.policies) {
    const auto& [result, time, hidden_seconds, cross_node_bytes] = outcomes.at(policy);
    table.AddRow({NameOf(policy), absl::StrFormat("%.4f", result.imbalance_mean),
                  absl::StrFormat("%.4f", result.imbalance_p99),
                  absl::StrFormat("%.4f", result.node_imbalance_mean),
                  absl::StrFormat("%.2f", result.copies_per_node), absl::StrCat(result.step.moves),
                  absl::StrCat(result.step.bridges),
                  absl::StrFormat("%.2f", cross_node_bytes / 1e9),
                  absl::StrFormat("%.2f", 1e3 * time.total_seconds()),
                  absl::StrFormat("%.2f", Speedup(outcomes, policy, Policy::kNone)),
                  absl::StrFormat("%.2f", Speedup(outcomes, policy, Policy::kEplb)),
                  absl::StrFormat("%.1f", 100 * Speedup(outcomes, policy, Policy::kIdeal)),
                  absl::StrFormat("%.1f", 100 * HiddenShare(outcomes, policy))});
  }
  std::cout
      << table.ToString() << "\n"
      << absl::StrFormat(
             "step ms is a model of the MoE layers alone (%s on %s, top-%d, %.0f %% of copies and "
             "moves exposed), not a measurement.\nimbalance: max/mean load of the ranks; nodes: of "
             "the nodes; across GB: tokens between nodes;\n%% ideal: throughput against the ideal; "
             "hidden: the same with all copies and moves hidden.\n",
             setup.model.name, setup.hardware.name, top_k, 100 * flags.exposure);
  if (shape.experts != setup.model.experts) {
    std::cout << absl::StrFormat(
        "The trace has %d experts, %s has %d: times are of its expert size.\n", shape.experts,
        setup.model.name, setup.model.experts);
  }
}

nlohmann::ordered_json ToJson(Policy policy, const Outcomes& outcomes) {
  const auto& [result, time, hidden_seconds, cross_node_bytes] = outcomes.at(policy);
  nlohmann::ordered_json json;
  json["policy"] = NameOf(policy);
  json["imbalance"] = result.imbalance_mean;
  json["imbalance_p99"] = result.imbalance_p99;
  json["imbalance_max"] = result.imbalance_max;
  json["node_imbalance"] = result.node_imbalance_mean;
  json["copies"] = result.copies;
  json["copies_per_node"] = result.copies_per_node;
  json["fetched"] = result.fetched;
  json["moves"] = result.step.moves;
  json["cross_node_moves"] = result.step.cross_node_moves;
  json["bridges"] = result.step.bridges;
  json["cross_rank_pairs"] = result.cross_rank_pairs;
  json["cross_node_pairs"] = result.cross_node_pairs;
  json["cross_node_bytes"] = cross_node_bytes;
  json["compute_seconds"] = time.compute_seconds;
  json["all_to_all_seconds"] = time.all_to_all_seconds;
  json["copy_seconds"] = time.copy_seconds;
  json["move_seconds"] = time.move_seconds;
  json["step_seconds"] = time.total_seconds();
  json["throughput_vs_none"] = Speedup(outcomes, policy, Policy::kNone);
  json["throughput_vs_eplb"] = Speedup(outcomes, policy, Policy::kEplb);
  json["throughput_vs_ideal"] = Speedup(outcomes, policy, Policy::kIdeal);
  json["throughput_vs_ideal_hidden"] = HiddenShare(outcomes, policy);
  return json;
}

void PrintJson(const SimulateFlags& flags, const Setup& setup, const Batch& batch, int top_k,
               const Outcomes& outcomes) {
  const LoadShape& shape = batch.trace.loads.shape();
  nlohmann::ordered_json json;
  json["trace"] = flags.batch.trace;
  json["nodes"] = flags.batch.topology.nodes;
  json["gpus_per_node"] = flags.batch.topology.gpus_per_node;
  json["replica_slots"] = flags.batch.topology.replica_slots;
  json["layers"] = shape.layers;
  json["experts"] = shape.experts;
  json["micro_batches"] = shape.micro_batches;
  json["top_k"] = top_k;
  json["model"] = std::string(setup.model.name);
  json["hardware"] = std::string(setup.hardware.name);
  json["exposure"] = flags.exposure;
  json["missing_share"] = batch.missing_share;
  json["policies"] = nlohmann::ordered_json::array();
  for (Policy policy : setup.policies) json["policies"].push_back(ToJson(policy, outcomes));
  std::cout << json.dump(2) << "\n";
}

absl::Status RunSimulate(const SimulateFlags& flags) {
  const absl::StatusOr<Setup> setup = SetupOf(flags);
  if (!setup.ok()) return setup.status();
  Progress progress;
  progress.Say(absl::StrCat("reading ", flags.batch.trace));
  const absl::StatusOr<Batch> batch = ReadBatch(flags.batch);
  if (!batch.ok()) return batch.status();
  const int top_k = batch->trace.top_k > 0 ? batch->trace.top_k : setup->model.top_k;
  const absl::StatusOr<Outcomes> outcomes = Simulate(flags, *setup, *batch, top_k, progress);
  if (!outcomes.ok()) return outcomes.status();
  progress.Clear();
  if (flags.format == "json") {
    PrintJson(flags, *setup, *batch, top_k, *outcomes);
  } else {
    PrintTable(flags, *setup, *batch, top_k, *outcomes);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddSimulateCommand(CLI::App& relibra) {
  CLI::App* command = relibra.add_subcommand(
      "simulate", "Compares policies on a recorded batch: balance, copies, modelled step time.");
  auto flags = std::make_shared<SimulateFlags>();
  AddBatchFlags(*command, flags->batch);
  AddPlannerFlags(*command, flags->planner);
  command->add_option("--model", flags->model, "whose expert sizes the step time is modelled with")
      ->capture_default_str();
  command->add_option("--hardware", flags->hardware, "whose GPUs and links: h100, h800, h200, b200")
      ->capture_default_str();
  command->add_option("--policies", flags->policies, "which to show, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--exposure", flags->exposure,
                   "share of copies and moves that nothing hides, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--format", flags->format, "table or json")->capture_default_str();
  command->add_flag("--verify", flags->verify, "check relibra's plan with the independent checker");
  return {.app = command, .run = [flags] { return RunSimulate(*flags); }};
}

}  // namespace relibra::cli

// relibra simulate: compares policies on one recorded batch.

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/policies.h"
#include "planner_service/cli/simulation.h"
#include "planner_service/cli/text_table.h"

namespace relibra::cli {
namespace {

struct SimulateFlags {
  SimulationFlags simulation;
  std::vector<std::string> policies = {"none", "eplb", "relibra", "ideal"};
  std::string format = "table";
};

absl::StatusOr<std::vector<Policy>> PoliciesOf(const SimulateFlags& flags) {
  std::vector<Policy> policies;
  for (const std::string& name : flags.policies) {
    const absl::StatusOr<Policy> policy = PolicyOf(name);
    if (!policy.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--policies: ", policy.status().message()));
    }
    policies.push_back(*policy);
  }
  return policies;
}

void PrintTable(const SimulationFlags& flags, const SimulationSetup& setup,
                const std::vector<Policy>& policies, const Simulation& simulation) {
  const LoadShape& shape = simulation.batch.trace.loads.shape();
  std::cout << absl::StrFormat(
      "%d layers, %d experts, %d micro-batches, %d x %d ranks, %d replica slots, %d pairs\n\n",
      shape.layers, shape.experts, shape.micro_batches, flags.batch.topology.nodes,
      flags.batch.topology.gpus_per_node, flags.batch.topology.replica_slots,
      simulation.outcomes.at(Policy::kNone).result.pairs);
  TextTable table({"policy", "imbalance", "p99", "nodes", "copies/node", "moves", "bridges",
                   "across GB", "step ms", "x none", "x eplb", "% ideal", "hidden"});
  for (Policy policy : policies) {
    const auto& [plan, result, time, hidden_seconds, cross_node_bytes] =
        simulation.outcomes.at(policy);
    table.AddRow({NameOf(policy), absl::StrFormat("%.4f", result.imbalance_mean),
                  absl::StrFormat("%.4f", result.imbalance_p99),
                  absl::StrFormat("%.4f", result.node_imbalance_mean),
                  absl::StrFormat("%.2f", result.copies_per_node), absl::StrCat(result.step.moves),
                  absl::StrCat(result.step.bridges),
                  absl::StrFormat("%.2f", cross_node_bytes / 1e9),
                  absl::StrFormat("%.2f", 1e3 * time.total_seconds()),
                  absl::StrFormat("%.2f", simulation.Speedup(policy, Policy::kNone)),
                  absl::StrFormat("%.2f", simulation.Speedup(policy, Policy::kEplb)),
                  absl::StrFormat("%.1f", 100 * simulation.Speedup(policy, Policy::kIdeal)),
                  absl::StrFormat("%.1f", 100 * simulation.HiddenShare(policy))});
  }
  std::cout
      << table.ToString() << "\n"
      << absl::StrFormat(
             "step ms is a model of the MoE layers alone (%s on %s, top-%d, %.0f %% of copies and "
             "moves exposed), not a measurement.\nimbalance: max/mean load of the ranks; nodes: of "
             "the nodes; across GB: tokens between nodes;\n%% ideal: throughput against the ideal; "
             "hidden: the same with all copies and moves hidden.\n",
             setup.model.name, setup.hardware.name, simulation.top_k, 100 * flags.exposure);
  if (shape.experts != setup.model.experts) {
    std::cout << absl::StrFormat(
        "The trace has %d experts, %s has %d: times are of its expert size.\n", shape.experts,
        setup.model.name, setup.model.experts);
  }
}

void PrintJson(const SimulationFlags& flags, const SimulationSetup& setup,
               const std::vector<Policy>& policies, const Simulation& simulation) {
  const LoadShape& shape = simulation.batch.trace.loads.shape();
  nlohmann::ordered_json json;
  json["trace"] = flags.batch.trace;
  json["nodes"] = flags.batch.topology.nodes;
  json["gpus_per_node"] = flags.batch.topology.gpus_per_node;
  json["replica_slots"] = flags.batch.topology.replica_slots;
  json["layers"] = shape.layers;
  json["experts"] = shape.experts;
  json["micro_batches"] = shape.micro_batches;
  json["top_k"] = simulation.top_k;
  json["model"] = std::string(setup.model.name);
  json["hardware"] = std::string(setup.hardware.name);
  json["exposure"] = flags.exposure;
  json["missing_share"] = simulation.batch.missing_share;
  json["policies"] = nlohmann::ordered_json::array();
  for (Policy policy : policies) json["policies"].push_back(FiguresOf(simulation, policy));
  std::cout << json.dump(2) << "\n";
}

absl::Status RunSimulate(const SimulateFlags& flags) {
  const absl::StatusOr<std::vector<Policy>> policies = PoliciesOf(flags);
  if (!policies.ok()) return policies.status();
  const absl::StatusOr<SimulationSetup> setup = SetupOf(flags.simulation);
  if (!setup.ok()) return setup.status();
  if (flags.format != "table" && flags.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: expected table or json, got \"", flags.format, "\""));
  }
  Progress progress;
  const absl::StatusOr<Simulation> simulation = Simulate(flags.simulation, *setup, progress);
  if (!simulation.ok()) return simulation.status();
  progress.Clear();
  if (flags.format == "json") {
    PrintJson(flags.simulation, *setup, *policies, *simulation);
  } else {
    PrintTable(flags.simulation, *setup, *policies, *simulation);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddSimulateCommand(CLI::App& relibra) {
  CLI::App* command = relibra.add_subcommand(
      "simulate", "Compares policies on a recorded batch: balance, copies, modelled step time.");
  auto flags = std::make_shared<SimulateFlags>();
  AddSimulationFlags(*command, flags->simulation);
  command->add_option("--policies", flags->policies, "which to show, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--format", flags->format, "table or json")->capture_default_str();
  return {.app = command, .run = [flags] { return RunSimulate(*flags); }};
}

}  // namespace relibra::cli

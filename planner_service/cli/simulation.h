// Every policy on one recorded batch: what `simulate` prints and `report` draws.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_SIMULATION_H_
#define RELIBRA_PLANNER_SERVICE_CLI_SIMULATION_H_

#include <map>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/console.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/policies.h"
#include "planner_service/core/cost_model.h"
#include "planner_service/core/evaluate.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/presets.h"

namespace relibra::cli {

// --model, --hardware, --exposure, --verify, and the flags of batch and planner.
struct SimulationFlags {
  BatchFlags batch;
  PlannerFlags planner;
  std::string model = "qwen3-30b-a3b";
  std::string hardware = "h100";
  double exposure = 1;
  bool verify = false;
};
void AddSimulationFlags(CLI::App& command, SimulationFlags& flags);

struct SimulationSetup {
  PlanOptions options;
  ModelPreset model;
  HardwarePreset hardware;
};

// INVALID_ARGUMENT naming the flag.
absl::StatusOr<SimulationSetup> SetupOf(const SimulationFlags& flags);

struct Outcome {
  Plan plan;  // empty for the ideal, which is none
  PolicyResult result;
  StepTime time;
  double hidden_seconds = 0;  // the step's time if all copies and moves were hidden
  // Bytes of tokens that cross nodes, dispatch and combine, forward and backward.
  double cross_node_bytes = 0;
};

struct Simulation {
  Batch batch;
  int top_k = 0;                       // the trace's, or the model's where it does not say
  std::map<Policy, Outcome> outcomes;  // of every policy

  // Throughput of a policy against another's; 1 where there is no work at all.
  double Speedup(Policy policy, Policy against) const;
  // The same against the ideal, if all copies and moves were hidden.
  double HiddenShare(Policy policy) const;
};

// Reads the batch, plans and evaluates it with every policy. ReadBatch's and PlanBatch's errors;
// with --verify, INTERNAL when relibra's plan breaks a rule.
absl::StatusOr<Simulation> Simulate(const SimulationFlags& flags, const SimulationSetup& setup,
                                    Progress& progress);

// A policy's figures by name, in the order in which they are shown.
nlohmann::ordered_json FiguresOf(const Simulation& simulation, Policy policy);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_SIMULATION_H_

#include "planner_service/cli/simulation.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/baseline/baseline_plan.h"
#include "planner_service/cli/parallel.h"

namespace relibra::cli {
namespace {

Outcome OutcomeOf(Plan plan, PolicyResult result, const SimulationSetup& setup,
                  const Topology& topology, double exposure) {
  Outcome outcome;
  outcome.plan = std::move(plan);
  outcome.result = std::move(result);
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

}  // namespace

void AddSimulationFlags(CLI::App& command, SimulationFlags& flags) {
  AddBatchFlags(command, flags.batch);
  AddPlannerFlags(command, flags.planner);
  command.add_option("--model", flags.model, "whose expert sizes the step time is modelled with")
      ->capture_default_str();
  command.add_option("--hardware", flags.hardware, "whose GPUs and links: h100, h800, h200, b200")
      ->capture_default_str();
  command
      .add_option("--exposure", flags.exposure,
                  "share of copies and moves that nothing hides, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_flag("--verify", flags.verify, "check relibra's plan with the independent checker");
}

absl::StatusOr<SimulationSetup> SetupOf(const SimulationFlags& flags) {
  SimulationSetup setup;
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
  return setup;
}

double Simulation::Speedup(Policy policy, Policy against) const {
  const double time = outcomes.at(policy).time.total_seconds();
  return time == 0 ? 1 : outcomes.at(against).time.total_seconds() / time;
}

double Simulation::HiddenShare(Policy policy) const {
  const double time = outcomes.at(policy).hidden_seconds;
  return time == 0 ? 1 : outcomes.at(Policy::kIdeal).hidden_seconds / time;
}

absl::StatusOr<Simulation> Simulate(const SimulationFlags& flags, const SimulationSetup& setup,
                                    Progress& progress) {
  progress.Say(absl::StrCat("reading ", flags.batch.trace));
  absl::StatusOr<Batch> batch = ReadBatch(flags.batch);
  if (!batch.ok()) return batch.status();
  Simulation simulation{.batch = *std::move(batch), .top_k = setup.model.top_k, .outcomes = {}};
  if (simulation.batch.trace.top_k > 0) simulation.top_k = simulation.batch.trace.top_k;
  const Topology& topology = flags.batch.topology;
  const ThreadPool threads(flags.planner.threads);
  for (Policy policy : {Policy::kNone, Policy::kEplb, Policy::kRelibra}) {
    progress.Say(absl::StrCat("planning with ", NameOf(policy)));
    absl::StatusOr<Plan> plan = PlanBatch(policy, simulation.batch, topology, setup.options,
                                          /*must_apply=*/false, threads);
    if (!plan.ok()) return plan.status();
    if (flags.verify && policy == Policy::kRelibra) {
      if (absl::Status s = VerifyPlan(policy, simulation.batch, *plan); !s.ok()) return s;
    }
    progress.Say(absl::StrCat("evaluating ", NameOf(policy)));
    PolicyResult result =
        Evaluate(NameOf(policy), simulation.batch.trace.loads, *plan,
                 {.top_k = simulation.top_k, .replicas_stay = policy == Policy::kEplb}, threads);
    simulation.outcomes[policy] =
        OutcomeOf(*std::move(plan), std::move(result), setup, topology, flags.exposure);
  }
  simulation.outcomes[Policy::kIdeal] =
      OutcomeOf({}, IdealResult(topology, simulation.outcomes[Policy::kNone].result), setup,
                topology, flags.exposure);
  return simulation;
}

nlohmann::ordered_json FiguresOf(const Simulation& simulation, Policy policy) {
  const auto& [plan, result, time, hidden_seconds, cross_node_bytes] =
      simulation.outcomes.at(policy);
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
  json["throughput_vs_none"] = simulation.Speedup(policy, Policy::kNone);
  json["throughput_vs_eplb"] = simulation.Speedup(policy, Policy::kEplb);
  json["throughput_vs_ideal"] = simulation.Speedup(policy, Policy::kIdeal);
  json["throughput_vs_ideal_hidden"] = simulation.HiddenShare(policy);
  return json;
}

}  // namespace relibra::cli

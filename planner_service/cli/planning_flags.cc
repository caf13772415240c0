#include "planner_service/cli/planning_flags.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner_service/cli/console.h"
#include "planner_service/trace/missing_routes.h"
#include "planner_service/trace/placement_file.h"
#include "planner_service/trace/trace_file.h"

namespace relibra::cli {
namespace {

constexpr int kMaxRanks = 65535;

absl::StatusOr<CountTrace> ReadCounts(const BatchFlags& flags) {
  absl::StatusOr<Trace> trace = ReadTraceFile(
      flags.trace, {.num_ranks = flags.topology.num_ranks(), .moe_layers = flags.moe_layers});
  if (!trace.ok()) return trace.status();
  for (const std::string& warning : trace->warnings) {
    PrintWarning(absl::StrCat(flags.trace, ": ", warning));
  }
  if (auto* counts = std::get_if<CountTrace>(&trace->routing)) return std::move(*counts);
  absl::StatusOr<CountTrace> counts =
      CountsOf(std::get<SequenceTrace>(trace->routing), flags.topology.num_ranks());
  if (!counts.ok()) {
    return absl::Status(counts.status().code(),
                        absl::StrCat(flags.trace, ": ", counts.status().message()));
  }
  return counts;
}

}  // namespace

void AddBatchFlags(CLI::App& command, BatchFlags& flags) {
  command.add_option("--trace", flags.trace, "the recorded batch (.npz or .json)")->required();
  command
      .add_option("--moe-layers", flags.moe_layers,
                  "the model's own numbers of its MoE layers, where the trace has dense ones too")
      ->delimiter(',');
  command.add_option("--nodes", flags.topology.nodes, "nodes of the EP group")
      ->check(CLI::Range(1, kMaxRanks))
      ->required();
  command.add_option("--gpus-per-node", flags.topology.gpus_per_node, "GPUs of each node")
      ->check(CLI::Range(1, kMaxRanks))
      ->required();
  command.add_option("--replica-slots", flags.topology.replica_slots, "replica slots of each GPU")
      ->check(CLI::Range(0, kMaxRanks))
      ->capture_default_str();
  command.add_option("--placement", flags.placement,
                     "the experts' homes before the step: a plan, or {\"homeRank\": [[...]]}; "
                     "default: experts in order");
}

void AddPlannerFlags(CLI::App& command, PlannerFlags& flags) {
  command
      .add_option("--effort", flags.effort,
                  "fast, or thorough: at most 20 times as long, for the last per cent")
      ->capture_default_str();
  command
      .add_option("--bridges", flags.bridges,
                  "most bridges a node: auto (the planner decides), 0 (none), or a number")
      ->capture_default_str();
  command.add_option("--max-moves", flags.max_moves,
                     "most experts that may change their home, over all layers; default: no limit");
  command.add_option("--move-cost", flags.move_cost, "tokens that moving one expert is worth")
      ->capture_default_str();
  command.add_option("--replica-cost", flags.replica_cost, "tokens that one replica is worth")
      ->capture_default_str();
  command.add_option("--seed", flags.seed, "seed of randomised searches")->capture_default_str();
  command.add_option("--threads", flags.threads, "threads; 0: as many as the machine runs at once")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

absl::StatusOr<PlanOptions> OptionsOf(const PlannerFlags& flags) {
  PlanOptions options;
  if (flags.effort != "fast" && flags.effort != "thorough") {
    return absl::InvalidArgumentError(
        absl::StrCat("--effort: expected fast or thorough, got \"", flags.effort, "\""));
  }
  options.effort = flags.effort == "fast" ? Effort::kFast : Effort::kThorough;
  if (flags.bridges != "auto") {
    int bridges = 0;
    if (!absl::SimpleAtoi(flags.bridges, &bridges) || bridges < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--bridges: expected auto or a number from 0 on, got \"", flags.bridges, "\""));
    }
    options.bridges = bridges;
  }
  if (!flags.max_moves.empty()) {
    int64_t max_moves = 0;
    if (!absl::SimpleAtoi(flags.max_moves, &max_moves) || max_moves < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--max-moves: expected a number from 0 on, got \"", flags.max_moves, "\""));
    }
    options.max_moves = max_moves;
  }
  for (const auto& [name, cost] :
       {std::pair{"--move-cost", flags.move_cost}, {"--replica-cost", flags.replica_cost}}) {
    if (!(cost >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected a number from 0 on, got ", cost));
    }
  }
  options.move_cost = flags.move_cost;
  options.replica_cost = flags.replica_cost;
  options.seed = flags.seed;
  return options;
}

absl::StatusOr<Batch> ReadBatch(const BatchFlags& flags) {
  if (int64_t{flags.topology.nodes} * flags.topology.gpus_per_node > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes ", flags.topology.nodes, " x --gpus-per-node ",
                     flags.topology.gpus_per_node, ": expected at most ", kMaxRanks, " ranks"));
  }
  absl::StatusOr<CountTrace> counts = ReadCounts(flags);
  if (!counts.ok()) return counts.status();
  Batch batch{.trace = *std::move(counts), .current = {}, .missing_share = 0};
  const LoadShape& shape = batch.trace.loads.shape();
  if (absl::Status s = Validate(flags.topology, shape.experts); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flags.trace, ": ", s.message()));
  }
  if (shape.sources != flags.topology.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.trace, ": loads: ", shape.sources, " source ranks, but --nodes ",
                     flags.topology.nodes, " x --gpus-per-node ", flags.topology.gpus_per_node,
                     " are ", flags.topology.num_ranks(), " ranks"));
  }
  batch.missing_share = MissingShare(batch.trace);
  if (batch.missing_share > 0) {
    absl::Status status =
        SpreadMissingRoutes(batch.trace.unrouted, batch.trace.top_k, batch.trace.loads);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(flags.trace, ": ", status.message()));
    }
  }
  if (flags.placement.empty()) {
    batch.current = LinearPlacement(flags.topology, shape.layers, shape.experts);
    return batch;
  }
  absl::StatusOr<Placement> placement =
      ReadPlacementFile(flags.placement, flags.topology, batch.trace.layer_ids, shape.experts);
  if (!placement.ok()) return placement.status();
  batch.current = *std::move(placement);
  return batch;
}

}  // namespace relibra::cli

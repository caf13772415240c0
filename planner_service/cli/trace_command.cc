// relibra trace: traces made, looked at, converted, fetched.

#include "planner_service/cli/trace_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/planner_client.h"
#include "planner_service/trace/trace_file.h"

namespace relibra::cli {
namespace {

struct ConvertFlags {
  std::string input;
  std::string output;
  std::vector<uint32_t> moe_layers;
  int ranks = 0;
  bool counts = false;
};

absl::Status RunConvert(const ConvertFlags& flags) {
  Progress progress;
  progress.Say(absl::StrCat("reading ", flags.input));
  absl::StatusOr<Trace> trace =
      ReadTraceFile(flags.input, {.num_ranks = flags.ranks, .moe_layers = flags.moe_layers});
  if (!trace.ok()) return trace.status();
  for (const std::string& warning : trace->warnings) {
    progress.Clear();
    PrintWarning(absl::StrCat(flags.input, ": ", warning));
  }
  if (const auto* sequences = std::get_if<SequenceTrace>(&trace->routing);
      flags.counts && sequences != nullptr) {
    absl::StatusOr<CountTrace> counts = CountsOf(*sequences, flags.ranks);
    if (!counts.ok()) {
      return absl::Status(counts.status().code(),
                          absl::StrCat(flags.input, ": ", counts.status().message()));
    }
    trace->routing = *std::move(counts);
  }
  progress.Say(absl::StrCat("writing ", flags.output));
  return WriteTraceFile(*trace, flags.output);
}

Command AddConvert(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand(
      "convert", "Reads a trace of any form and writes it as counts or counted sequences.");
  auto flags = std::make_shared<ConvertFlags>();
  command->add_option("input", flags->input, "the trace to read (.npz or .json)")->required();
  command->add_option("-o,--output", flags->output, "the trace to write (.npz or .json)")
      ->required();
  command->add_flag("--counts", flags->counts,
                    "sequences become counts by their own places; .json is always counts");
  command->add_option("--ranks", flags->ranks, "ranks of the topology; 0: as many as are named")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--moe-layers", flags->moe_layers,
                   "the model's own numbers of its MoE layers, where there are dense ones too")
      ->delimiter(',');
  return {.app = command, .run = [flags] { return RunConvert(*flags); }};
}

struct FetchFlags {
  std::string planner;
  PassName pass;
  std::string output;
  double timeout_seconds = 60;
};

absl::Status RunFetch(const FetchFlags& flags) {
  Progress progress;
  progress.Say(absl::StrCat("fetching from ", flags.planner));
  PlannerClient client(flags.planner, flags.timeout_seconds);
  absl::StatusOr<CountTrace> counts = client.GetLoads(flags.pass);
  if (!counts.ok()) return counts.status();
  progress.Say(absl::StrCat("writing ", flags.output));
  return WriteTraceFile({.routing = *std::move(counts), .warnings = {}}, flags.output);
}

Command AddFetch(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand(
      "fetch", "Writes the loads that a running planner made a plan from, to plan them again.");
  auto flags = std::make_shared<FetchFlags>();
  command->add_option("--planner", flags->planner, "HOST:PORT")->required();
  command->add_option("--job", flags->pass.job, "the job")->required();
  command->add_option("--step", flags->pass.step, "the step")->required();
  command->add_option("--policy-version", flags->pass.policy_version, "of the step")
      ->capture_default_str();
  command->add_option("--pass", flags->pass.pass, "of the step")->capture_default_str();
  command->add_option("--ep-group", flags->pass.ep_group, "default: the job's only one");
  command->add_option("--timeout", flags->timeout_seconds, "seconds to wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("-o,--output", flags->output, "the trace to write (.npz or .json)")
      ->required();
  return {.app = command, .run = [flags] { return RunFetch(*flags); }};
}

}  // namespace

std::vector<Command> AddTraceCommands(CLI::App& relibra) {
  CLI::App* trace = relibra.add_subcommand("trace", "Makes, shows, converts and fetches traces.");
  trace->require_subcommand(1);
  return {AddTraceGenerate(*trace), AddTraceInfo(*trace), AddConvert(*trace), AddFetch(*trace)};
}

}  // namespace relibra::cli

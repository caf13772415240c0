// relibra trace generate: synthetic traces.

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/skew.h"
#include "planner_service/cli/trace_command.h"
#include "planner_service/trace/generator.h"
#include "planner_service/trace/trace_file.h"

namespace relibra::cli {
namespace {

struct GenerateFlags {
  GeneratorOptions options;
  std::string family = "rl";
  std::string skew = "harsh";
  int nodes = 2;
  int gpus_per_node = 8;
  int threads = 0;
  bool sequences = false;
  std::string output;
};

absl::StatusOr<TraceFamily> FamilyOf(const std::string& name) {
  if (name == "rl") return TraceFamily::kRl;
  if (name == "uniform") return TraceFamily::kUniform;
  if (name == "one-hot") return TraceFamily::kOneHot;
  return absl::InvalidArgumentError(
      absl::StrCat("--family: expected rl, uniform or one-hot, got \"", name, "\""));
}

absl::StatusOr<Trace> Generate(const GeneratorOptions& options, bool as_sequences,
                               const ThreadPool& threads) {
  if (as_sequences) {
    absl::StatusOr<SequenceTrace> sequences = GenerateSequences(options, threads);
    if (!sequences.ok()) return sequences.status();
    return Trace{.routing = *std::move(sequences), .warnings = {}};
  }
  absl::StatusOr<CountTrace> counts = GenerateCounts(options, threads);
  if (!counts.ok()) return counts.status();
  return Trace{.routing = *std::move(counts), .warnings = {}};
}

absl::Status RunGenerate(const GenerateFlags& flags) {
  GeneratorOptions options = flags.options;
  const absl::StatusOr<TraceFamily> family = FamilyOf(flags.family);
  if (!family.ok()) return family.status();
  options.family = *family;
  const absl::StatusOr<Skew> skew = ParseSkew(flags.skew);
  if (!skew.ok()) return absl::InvalidArgumentError(absl::StrCat("--", skew.status().message()));
  skew->ApplyTo(options);
  const int64_t ranks = int64_t{flags.nodes} * flags.gpus_per_node;
  if (ranks > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes x --gpus-per-node: expected at most 65535 ranks, got ", ranks));
  }
  options.num_ranks = static_cast<int>(ranks);

  Progress progress;
  progress.Say("generating");
  const ThreadPool threads(flags.threads);
  const absl::StatusOr<Trace> trace = Generate(options, flags.sequences, threads);
  if (!trace.ok()) return trace.status();
  progress.Say(absl::StrCat("writing ", flags.output));
  return WriteTraceFile(*trace, flags.output);
}

void AddBatchShape(CLI::App& command, GenerateFlags& flags) {
  GeneratorOptions& options = flags.options;
  command.add_option("--nodes", flags.nodes, "nodes of the EP group")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command.add_option("--gpus-per-node", flags.gpus_per_node, "GPUs of each node")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command.add_option("--micro-batches", options.micro_batches, "micro-batches")
      ->capture_default_str();
  command.add_option("--layers", options.layers, "MoE layers")->capture_default_str();
  command.add_option("--experts", options.experts, "experts a layer")->capture_default_str();
  command.add_option("--top-k", options.top_k, "experts a token")->capture_default_str();
  command.add_option("--tokens", options.tokens_per_bin, "tokens a rank and micro-batch")
      ->capture_default_str();
}

void AddRouting(CLI::App& command, GenerateFlags& flags) {
  GeneratorOptions& options = flags.options;
  command
      .add_option("--family", flags.family,
                  "rl: popularity x domain x sequence; uniform; one-hot: one expert a layer gets "
                  "all it can")
      ->capture_default_str();
  command
      .add_option("--skew", flags.skew,
                  "of rl: lognormal sigmas of layer/domain/sequence, or harsh (1.0/0.8/0.5), or "
                  "mild (0.6/0.5/0.3)")
      ->capture_default_str();
  command.add_option("--domains", options.domains, "domains that prompts come from")
      ->capture_default_str();
  command
      .add_option("--sequences-per-rank", options.sequences_per_bin,
                  "sequences a rank and micro-batch")
      ->capture_default_str();
  command.add_option("--group-size", options.group_size, "sequences of one prompt")
      ->capture_default_str();
  command
      .add_option("--length-sigma", options.length_sigma,
                  "lognormal sigma of the sequences' lengths; 0: equal")
      ->capture_default_str();
  command.add_option("--max-tokens", options.max_tokens, "longest sequence, where lengths differ")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "same seed, same trace")->capture_default_str();
}

}  // namespace

Command AddTraceGenerate(CLI::App& trace) {
  CLI::App* command =
      trace.add_subcommand("generate", "Makes a synthetic trace that is skewed as RL training is.");
  auto flags = std::make_shared<GenerateFlags>();
  AddBatchShape(*command, *flags);
  AddRouting(*command, *flags);
  command->add_flag("--sequences", flags->sequences,
                    "write each sequence's histogram, for packing, in place of counts");
  command->add_option("--threads", flags->threads, "0: as many as the machine runs at once")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("-o,--output", flags->output, "the trace to write (.npz or .json)")
      ->required();
  return {.app = command, .run = [flags] { return RunGenerate(*flags); }};
}

}  // namespace relibra::cli

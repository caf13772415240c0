// relibra trace info: what is in a trace.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/console.h"
#include "planner_service/cli/trace_command.h"
#include "planner_service/trace/trace_file.h"

namespace relibra::cli {
namespace {

struct InfoFlags {
  std::string input;
  std::vector<uint32_t> moe_layers;
  bool json = false;
};

// Facts in the order in which they are shown.
using Facts = nlohmann::ordered_json;

// Mean over (layer, micro-batch) with tokens of the hottest expert's share of the pairs.
double HottestShare(const Loads& loads) {
  const LoadShape& shape = loads.shape();
  double sum = 0;
  int cells = 0;
  std::vector<uint64_t> experts(shape.experts);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int l = 0; l < shape.layers; ++l) {
      const absl::Span<const uint32_t> matrix = loads.At(m, l);
      std::fill(experts.begin(), experts.end(), 0);
      for (size_t i = 0; i < matrix.size(); ++i) experts[i % experts.size()] += matrix[i];
      const uint64_t all = std::accumulate(experts.begin(), experts.end(), uint64_t{0});
      if (all == 0) continue;
      sum += static_cast<double>(*std::max_element(experts.begin(), experts.end())) /
             static_cast<double>(all);
      ++cells;
    }
  }
  return cells == 0 ? 0 : sum / cells;
}

void AddFacts(const CountTrace& trace, Facts& facts) {
  const LoadShape& shape = trace.loads.shape();
  const absl::Span<const uint32_t> counts = trace.loads.counts();
  facts["form"] = "counts";
  facts["micro_batches"] = shape.micro_batches;
  facts["layers"] = shape.layers;
  facts["layer_ids"] = trace.layer_ids;
  facts["source_ranks"] = shape.sources;
  facts["experts"] = shape.experts;
  facts["top_k"] = trace.top_k;
  facts["pairs"] = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  facts["missing_share"] = MissingShare(trace);
  facts["hottest_expert_share"] = HottestShare(trace.loads);
}

void AddFacts(const SequenceTrace& trace, Facts& facts) {
  facts["form"] = "sequences";
  facts["sequences"] = trace.num_sequences();
  facts["layers"] = trace.num_layers();
  facts["layer_ids"] = trace.layer_ids;
  facts["experts"] = trace.num_experts;
  facts["top_k"] = trace.top_k;
  facts["tokens"] = std::accumulate(trace.tokens.begin(), trace.tokens.end(), uint64_t{0});
  facts["longest_sequence"] =
      trace.tokens.empty() ? 0 : *std::max_element(trace.tokens.begin(), trace.tokens.end());
  facts["pairs"] = std::accumulate(trace.counts.begin(), trace.counts.end(), uint64_t{0});
  facts["placed"] = !trace.micro_batches.empty();
  if (trace.micro_batches.empty()) return;
  facts["micro_batches"] =
      *std::max_element(trace.micro_batches.begin(), trace.micro_batches.end()) + 1;
  facts["source_ranks"] =
      *std::max_element(trace.source_ranks.begin(), trace.source_ranks.end()) + 1;
}

absl::Status RunInfo(const InfoFlags& flags) {
  Progress progress;
  progress.Say(absl::StrCat("reading ", flags.input));
  const absl::StatusOr<Trace> trace =
      ReadTraceFile(flags.input, {.num_ranks = 0, .moe_layers = flags.moe_layers});
  progress.Clear();
  if (!trace.ok()) return trace.status();
  Facts facts;
  facts["trace"] = flags.input;
  std::visit([&facts](const auto& routing) { AddFacts(routing, facts); }, trace->routing);
  facts["warnings"] = trace->warnings;
  if (flags.json) {
    std::cout << facts.dump(2) << "\n";
    return absl::OkStatus();
  }
  for (const auto& [name, value] : facts.items()) {
    if (name == "warnings") continue;
    std::string label = name;
    std::replace(label.begin(), label.end(), '_', ' ');
    std::cout << absl::StrFormat("%-22s %s\n", label,
                                 value.is_string() ? value.get<std::string>() : value.dump());
  }
  for (const std::string& warning : trace->warnings) PrintWarning(warning);
  return absl::OkStatus();
}

}  // namespace

Command AddTraceInfo(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand("info", "Shows what is in a trace.");
  auto flags = std::make_shared<InfoFlags>();
  command->add_option("input", flags->input, "the trace (.npz or .json)")->required();
  command
      ->add_option("--moe-layers", flags->moe_layers,
                   "the model's own numbers of its MoE layers, where there are dense ones too")
      ->delimiter(',');
  command->add_flag("--json", flags->json, "as JSON");
  return {.app = command, .run = [flags] { return RunInfo(*flags); }};
}

}  // namespace relibra::cli

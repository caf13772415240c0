#include "planner_service/cli/report/data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace relibra::cli {
namespace {

using nlohmann::ordered_json;

// Five digits are more than a chart shows, and keep the page small.
double Rounded(double ratio) { return std::round(ratio * 1e5) / 1e5; }

ordered_json Rounded(const std::vector<double>& ratios) {
  ordered_json json = ordered_json::array();
  for (double ratio : ratios) json.push_back(Rounded(ratio));
  return json;
}

ordered_json ImbalanceByCell(const PolicyResult& result, int ranks) {
  ordered_json json = ordered_json::array();
  for (const LayerWork& work : result.work) {
    json.push_back(work.pairs == 0
                       ? 1
                       : Rounded(work.most_rank_pairs * ranks / static_cast<double>(work.pairs)));
  }
  return json;
}

ordered_json LimitsByCell(const std::vector<Limits>& limits, double Limits::*kind) {
  ordered_json json = ordered_json::array();
  for (const Limits& cell : limits) json.push_back(Rounded(cell.*kind));
  return json;
}

}  // namespace

ordered_json PackedIntegers(absl::Span<const uint32_t> values) {
  const bool two_bytes =
      std::all_of(values.begin(), values.end(), [](uint32_t value) { return value <= 0xffff; });
  const int size = two_bytes ? 2 : 4;
  std::string bytes;
  bytes.reserve(values.size() * size);
  for (uint32_t value : values) {
    for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  return {{"type", two_bytes ? "u2" : "u4"}, {"base64", absl::Base64Escape(bytes)}};
}

ordered_json ReportData(const SimulationFlags& flags, const SimulationSetup& setup,
                        const Simulation& simulation, const ReportFigures& figures) {
  const Topology& topology = flags.batch.topology;
  const CountTrace& trace = simulation.batch.trace;
  const LoadShape& shape = trace.loads.shape();
  const Plan& plan = simulation.outcomes.at(Policy::kRelibra).plan;
  ordered_json json;
  // The file's name alone: a report is sent to others, whom the folders here do not concern.
  json["trace"] = std::filesystem::path(flags.batch.trace).filename().string();
  json["nodes"] = topology.nodes;
  json["gpus_per_node"] = topology.gpus_per_node;
  json["replica_slots"] = topology.replica_slots;
  json["layers"] = shape.layers;
  json["experts"] = shape.experts;
  json["micro_batches"] = shape.micro_batches;
  json["layer_ids"] = trace.layer_ids;
  json["top_k"] = simulation.top_k;
  json["pairs"] = simulation.outcomes.at(Policy::kNone).result.pairs;
  json["missing_share"] = simulation.batch.missing_share;
  json["model"] = std::string(setup.model.name);
  json["model_experts"] = setup.model.experts;
  json["hardware"] = std::string(setup.hardware.name);
  json["exposure"] = flags.exposure;
  json["lower_bound"] = Rounded(plan.summary.lower_bound);
  json["plan_seconds"] = plan.summary.plan_seconds;
  json["digest"] = plan.digest;
  json["policies"] = ordered_json::array();
  for (Policy policy : {Policy::kNone, Policy::kEplb, Policy::kRelibra, Policy::kIdeal}) {
    ordered_json one = FiguresOf(simulation, policy);
    one["imbalance_by_cell"] =
        ImbalanceByCell(simulation.outcomes.at(policy).result, topology.num_ranks());
    json["policies"].push_back(std::move(one));
  }
  json["rank_loads"] = {{"before", PackedIntegers(figures.loads_before)},
                        {"after", PackedIntegers(figures.loads_after)}};
  json["expert_loads"] = figures.expert_loads;
  json["expert_peaks"] = Rounded(figures.expert_peaks);
  json["expert_copied"] = figures.expert_copied;
  json["copies"] = {{"kept", figures.copies_kept}, {"fetched", figures.copies_fetched}};
  json["moves"] = {{"inside", figures.moves_inside},
                   {"across", figures.moves_across},
                   {"bridges", figures.bridges}};
  json["limits"] = {{"hottest_expert", LimitsByCell(figures.limits, &Limits::hottest_expert)},
                    {"node_bound", LimitsByCell(figures.limits, &Limits::node_bound)},
                    {"slots", LimitsByCell(figures.limits, &Limits::slots)}};
  return json;
}

}  // namespace relibra::cli

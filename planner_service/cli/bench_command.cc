// relibra bench: quality and speed against the baselines on synthetic batches.

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/bench_instances.h"
#include "planner_service/cli/bench_runner.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/skew.h"
#include "planner_service/cli/text_table.h"

namespace relibra::cli {
namespace {

struct BenchFlags {
  std::vector<std::string> instances = {"quality"};
  std::vector<std::string> skews = {"harsh", "mild"};
  std::vector<std::string> policies = {"none", "eplb", "fast", "thorough", "bridges"};
  PlannerFlags planner;
  BenchSetup setup;
  int layers = 0;
  std::string format = "table";
};

// The instances of a suite, or the one of a name; "all" is both suites.
absl::StatusOr<std::vector<BenchInstance>> InstancesOf(const BenchFlags& flags) {
  std::vector<BenchInstance> chosen;
  for (const std::string& name : flags.instances) {
    const size_t before = chosen.size();
    std::vector<absl::string_view> names;
    for (const auto& [suite, instances] :
         {std::pair{"quality", QualityInstances()}, {"speed", SpeedInstances()}}) {
      names.push_back(suite);
      for (const BenchInstance& instance : instances) {
        names.push_back(instance.name);
        if (name == "all" || name == suite || name == instance.name) chosen.push_back(instance);
      }
    }
    if (chosen.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--instances: expected all, ", absl::StrJoin(names, ", "), ", got \"", name, "\""));
    }
  }
  for (BenchInstance& instance : chosen) {
    if (flags.layers > 0) instance.layers = flags.layers;
  }
  return chosen;
}

absl::StatusOr<std::vector<BenchPolicy>> PoliciesOf(const BenchFlags& flags) {
  const absl::StatusOr<PlanOptions> asked = OptionsOf(flags.planner);
  if (!asked.ok()) return asked.status();
  std::vector<BenchPolicy> policies;
  for (const std::string& name : flags.policies) {
    BenchPolicy policy{.name = name, .kind = BenchPolicy::Kind::kRelibra, .options = *asked};
    if (name == "none") {
      policy.kind = BenchPolicy::Kind::kNone;
    } else if (name == "eplb") {
      policy.kind = BenchPolicy::Kind::kEplb;
    } else if (name == "fast" || name == "thorough") {
      policy.options.effort = name == "fast" ? Effort::kFast : Effort::kThorough;
      policy.options.bridges = 0;
    } else if (name == "bridges") {
      policy.options.effort = Effort::kFast;
      policy.options.bridges.reset();
    } else if (name == "moves") {
      policy.options.bridges = 0;
      for (int percent : {0, 2, 5, 10, 20, 30, 50, 100}) {
        policy.name = absl::StrCat("moves<=", percent, "%");
        policy.move_share = percent / 100.0;
        policies.push_back(policy);
      }
      continue;
    } else if (name != "relibra") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--policies: expected none, eplb, fast, thorough, bridges, moves or relibra, got \"",
          name, "\""));
    }
    policies.push_back(std::move(policy));
  }
  return policies;
}

// How many whole-batch plans of ours fit into one EPLB call for one micro-batch.
double Ratio(double eplb_ms, const BenchRow& row) {
  return row.milliseconds == 0 ? 0 : eplb_ms / row.milliseconds;
}

double PeakOverLoads(const BenchRow& row) {
  return 1 + static_cast<double>(row.plan_bytes) / static_cast<double>(row.load_bytes);
}

void PrintTable(const BenchFlags& flags, const ThreadPool& threads,
                const std::vector<BenchRow>& rows) {
  const bool with_public = !flags.setup.public_eplb.empty();
  std::vector<std::string> header = {"instance",    "skew",          "policy",      "imbalance",
                                     "bound",       "gap",           "copies/node", "kept",
                                     "moves/layer", "bridges/layer", "ms",          "plan MB",
                                     "peak/loads",  "eplb call ms",  "call/plan"};
  if (with_public) header.insert(header.end(), {"public call ms", "public/plan"});
  TextTable table(header);
  for (const BenchRow& row : rows) {
    const bool bounded = row.bound > 0;
    const bool timed = row.milliseconds > 0;
    std::vector<std::string> cells = {
        row.instance,
        row.skew,
        row.policy,
        absl::StrFormat("%.4f", row.imbalance),
        bounded ? absl::StrFormat("%.4f", row.bound) : "-",
        bounded ? absl::StrFormat("%.4f", row.imbalance - row.bound) : "-",
        absl::StrFormat("%.2f", row.copies_per_node),
        absl::StrFormat("%.0f%%", 100 * row.kept_share),
        absl::StrFormat("%.1f", row.moves),
        absl::StrFormat("%.1f", row.bridges),
        timed ? absl::StrFormat("%.1f", row.milliseconds) : "-",
        absl::StrFormat("%.0f", static_cast<double>(row.plan_bytes) / 1e6),
        absl::StrFormat("%.2f", PeakOverLoads(row)),
        absl::StrFormat("%.1f", row.eplb_call_ms),
        timed ? absl::StrFormat("%.3f", Ratio(row.eplb_call_ms, row)) : "-"};
    if (with_public) {
      cells.push_back(absl::StrFormat("%.0f", row.public_eplb_call_ms));
      cells.push_back(absl::StrFormat("%.1f", Ratio(row.public_eplb_call_ms, row)));
    }
    table.AddRow(std::move(cells));
  }
  std::cout << table.ToString() << "\n"
            << absl::StrFormat(
                   "Means over %d seeds; R = %d, %d threads. ms: planning the whole batch, all "
                   "layers and "
                   "micro-batches, splits included%s.\nplan MB: what planning adds to the process; "
                   "peak/loads: that "
                   "and the "
                   "loads over the loads.\neplb call: one EPLB call for the loads of one "
                   "micro-batch, all "
                   "layers, one thread; call/plan: over ms.\n",
                   flags.setup.seeds, flags.setup.replica_slots, threads.num_threads(),
                   flags.setup.repeats > 1 ? absl::StrFormat(", best of %d", flags.setup.repeats)
                                           : "");
}

void PrintJson(const BenchFlags& flags, const ThreadPool& threads,
               const std::vector<BenchRow>& rows) {
  nlohmann::ordered_json json;
  json["seeds"] = flags.setup.seeds;
  json["replica_slots"] = flags.setup.replica_slots;
  json["threads"] = threads.num_threads();
  json["repeats"] = flags.setup.repeats;
  json["verified"] = flags.setup.verify;
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    nlohmann::ordered_json one;
    one["instance"] = row.instance;
    one["skew"] = row.skew;
    one["policy"] = row.policy;
    one["imbalance"] = row.imbalance;
    if (row.bound > 0) {
      one["bound"] = row.bound;
      one["gap"] = row.imbalance - row.bound;
    }
    one["copies_per_node"] = row.copies_per_node;
    one["kept_share"] = row.kept_share;
    one["moves_per_layer"] = row.moves;
    one["bridges_per_layer"] = row.bridges;
    one["milliseconds"] = row.milliseconds;
    one["plan_bytes"] = row.plan_bytes;
    one["load_bytes"] = row.load_bytes;
    one["peak_over_loads"] = PeakOverLoads(row);
    one["eplb_call_ms"] = row.eplb_call_ms;
    one["eplb_call_over_plan"] = Ratio(row.eplb_call_ms, row);
    if (!flags.setup.public_eplb.empty()) {
      one["public_eplb_call_ms"] = row.public_eplb_call_ms;
      one["public_eplb_call_over_plan"] = Ratio(row.public_eplb_call_ms, row);
    }
    json["rows"].push_back(std::move(one));
  }
  std::cout << json.dump(2) << "\n";
}

absl::Status RunBench(const BenchFlags& flags) {
  const absl::StatusOr<std::vector<BenchInstance>> instances = InstancesOf(flags);
  if (!instances.ok()) return instances.status();
  const absl::StatusOr<std::vector<BenchPolicy>> policies = PoliciesOf(flags);
  if (!policies.ok()) return policies.status();
  std::vector<Skew> skews;
  for (const std::string& words : flags.skews) {
    const absl::StatusOr<Skew> skew = ParseSkew(words);
    if (!skew.ok()) return absl::InvalidArgumentError(absl::StrCat("--", skew.status().message()));
    skews.push_back(*skew);
  }
  if (flags.format != "table" && flags.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: expected table or json, got \"", flags.format, "\""));
  }
  const ThreadPool threads(flags.planner.threads);
  Progress progress;
  std::vector<BenchRow> rows;
  for (const BenchInstance& instance : *instances) {
    for (size_t s = 0; s < skews.size(); ++s) {
      absl::StatusOr<std::vector<BenchRow>> more =
          RunInstance(instance, flags.skews[s], skews[s], *policies, flags.setup, threads,
                      [&progress](const std::string& what) { progress.Say(what); });
      if (!more.ok()) return more.status();
      rows.insert(rows.end(), more->begin(), more->end());
    }
  }
  progress.Clear();
  if (flags.format == "json") {
    PrintJson(flags, threads, rows);
  } else {
    PrintTable(flags, threads, rows);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddBenchCommand(CLI::App& relibra) {
  CLI::App* command = relibra.add_subcommand(
      "bench", "Quality and speed against the baselines, on synthetic batches, in one table.");
  auto flags = std::make_shared<BenchFlags>();
  command
      ->add_option("--instances", flags->instances,
                   "quality (a sample of layers), speed (whole batches), all, or names, "
                   "comma-separated; a name is nodes x GPUs/experts/micro-batches")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--skew", flags->skews, "harsh, mild or a/b/c, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option(
          "--policies", flags->policies,
          "none, eplb; fast and thorough (without bridges), bridges (fast, as many as "
          "pay), moves (the next batch, by how many homes may move), relibra (as the flags "
          "below say); comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--seeds", flags->setup.seeds, "traces an instance and skew")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "layers in place of the instance's own")
      ->check(CLI::Range(1, 1000));
  command->add_option("--repeats", flags->setup.repeats, "plans timed a trace; the best counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--replica-slots", flags->setup.replica_slots, "replica slots of each GPU")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--public-eplb", flags->setup.public_eplb,
                      "the public EPLB's eplb.py, to time it in the same run (needs PyTorch)");
  AddPlannerFlags(*command, flags->planner);
  command->add_flag("--verify", flags->setup.verify,
                    "check every plan with the independent checker");
  command->add_option("--format", flags->format, "table or json")->capture_default_str();
  return {.app = command, .run = [flags] { return RunBench(*flags); }};
}

}  // namespace relibra::cli

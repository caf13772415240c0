// relibra plan: plans one recorded batch and writes the plan to a file.

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/message_json.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/policies.h"
#include "planner_service/trace/plan_file.h"
#include "planner_service/trace/plan_message.h"
#include "planner_service/trace/plan_splits.h"

namespace relibra::cli {
namespace {

struct PlanFlags {
  BatchFlags batch;
  PlannerFlags planner;
  std::string policy = "relibra";
  std::string format = "json";
  std::string output;
  std::string job = "offline";
  uint32_t step = 0;
  bool no_splits = false;
  bool verify = false;
  bool json = false;
};

void PrintSummary(const PlanFlags& flags, const Plan& plan, double missing_share) {
  const PlanSummary& summary = plan.summary;
  const auto line = [](const char* label, const std::string& value) {
    std::cout << absl::StrFormat("%-20s %s\n", label, value);
  };
  line("imbalance before", absl::StrFormat("%.4f", summary.imbalance_before));
  line("imbalance after",
       absl::StrFormat("%.4f  (lower bound %.4f, nodes before replication %.4f)",
                       summary.imbalance_after, summary.lower_bound, summary.node_imbalance_after));
  line("moves", absl::StrFormat("%d  (%d between nodes)", summary.moves, summary.cross_node_moves));
  line("replicas", absl::StrFormat("%d  (%d kept from the micro-batch before)", summary.replicas,
                                   summary.replicas_kept));
  line("bridges", absl::StrCat(summary.bridges));
  line("tokens", absl::StrCat(summary.tokens, "  (token, choice) pairs"));
  if (missing_share > 0) {
    line("unrecorded routes", absl::StrFormat("%.2f %% of the tokens, spread by their layer's mean",
                                              100 * missing_share));
  }
  line("planned in", absl::StrFormat("%.1f ms", 1e3 * summary.plan_seconds));
  if (flags.verify) line("verified", "every rule of plans holds");
  line("digest", plan.digest);
  line("written to", flags.output);
}

absl::Status RunPlan(const PlanFlags& flags) {
  const absl::StatusOr<Policy> policy = PolicyOf(flags.policy);
  if (!policy.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--policy: ", policy.status().message()));
  }
  const absl::StatusOr<PlanOptions> options = OptionsOf(flags.planner);
  if (!options.ok()) return options.status();
  if (flags.format != "json" && flags.format != "pb") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: expected json or pb, got \"", flags.format, "\""));
  }
  Progress progress;
  progress.Say(absl::StrCat("reading ", flags.batch.trace));
  const absl::StatusOr<Batch> batch = ReadBatch(flags.batch);
  if (!batch.ok()) return batch.status();

  progress.Say("planning");
  const ThreadPool threads(flags.planner.threads);
  const absl::StatusOr<Plan> plan = PlanBatch(*policy, *batch, flags.batch.topology, *options,
                                              /*must_apply=*/true, threads);
  if (!plan.ok()) return plan.status();
  if (flags.verify) {
    progress.Say("verifying");
    if (absl::Status s = VerifyPlan(*policy, *batch, *plan); !s.ok()) return s;
  }

  progress.Say(absl::StrCat("writing ", flags.output));
  const PlanKey key{.job = flags.job,
                    .step = flags.step,
                    .policy_version = 0,
                    .pass = "update",
                    .ep_group = "ep0"};
  v1::Plan message = PlanMessage(*plan, key, batch->trace.layer_ids);
  message.mutable_summary()->set_missing_share(batch->missing_share);
  if (!flags.no_splits) {
    threads(message.layers_size(), [&](int l) {
      AddSplits(plan->topology, plan->layers[l], batch->trace.loads, l,
                *message.mutable_layers()->Mutable(l));
    });
  }
  const PlanFormat format = flags.format == "json" ? PlanFormat::kJson : PlanFormat::kProtobuf;
  if (absl::Status s = WritePlanFile(message, format, flags.output); !s.ok()) return s;

  progress.Clear();
  if (flags.json) return PrintJson(message.summary());
  PrintSummary(flags, *plan, batch->missing_share);
  return absl::OkStatus();
}

}  // namespace

Command AddPlanCommand(CLI::App& relibra) {
  CLI::App* command = relibra.add_subcommand(
      "plan", "Plans a recorded batch: homes, replicas, splits; prints a summary.");
  auto flags = std::make_shared<PlanFlags>();
  AddBatchFlags(*command, flags->batch);
  AddPlannerFlags(*command, flags->planner);
  command->add_option("--policy", flags->policy, "relibra, eplb or none")->capture_default_str();
  command->add_option("--format", flags->format, "of the plan: json or pb (protobuf)")
      ->capture_default_str();
  command->add_option("--job", flags->job, "the job's name in the plan")->capture_default_str();
  command->add_option("--step", flags->step, "the step's number in the plan")
      ->capture_default_str();
  command->add_flag("--no-splits", flags->no_splits, "leave the splits out of the plan");
  command->add_flag("--verify", flags->verify, "check the plan with the independent checker");
  command->add_flag("--json", flags->json, "print the summary as JSON");
  command->add_option("-o,--output", flags->output, "the plan's file")->required();
  return {.app = command, .run = [flags] { return RunPlan(*flags); }};
}

}  // namespace relibra::cli

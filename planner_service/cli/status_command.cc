// relibra status: what a running planner is at.

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/message_json.h"
#include "planner_service/cli/planner_client.h"
#include "planner_service/cli/text_table.h"

namespace relibra::cli {
namespace {

struct StatusFlags {
  std::string planner;
  std::string job;
  double timeout_seconds = 10;
  bool json = false;
};

const char* NameOf(v1::StepOutcome outcome) {
  switch (outcome) {
    case v1::STEP_OUTCOME_APPLIED:
      return "applied";
    case v1::STEP_OUTCOME_KEPT_OLD:
      return "kept old";
    case v1::STEP_OUTCOME_FAILED:
      return "failed";
    default:
      return "-";
  }
}

void PrintAgents(const v1::JobStatus& job) {
  if (job.agents().empty()) return;
  TextTable table({"group", "rank", "host", "watching", "last step", "outcome", "reason"});
  for (const v1::AgentStatus& agent : job.agents()) {
    table.AddRow({agent.ep_group(), absl::StrCat(agent.rank()), agent.host(),
                  agent.watching() ? "yes" : "no", absl::StrCat(agent.last_step()),
                  NameOf(agent.last_outcome()), agent.last_reason()});
  }
  std::cout << "\n" << table.ToString();
}

void PrintSteps(const v1::JobStatus& job) {
  if (job.steps().empty()) return;
  TextTable table({"step", "version", "sequences", "pairs", "pass", "group", "before", "after",
                   "bound", "moves", "replicas", "bridges", "ms"});
  for (const v1::StepStatus& step : job.steps()) {
    const std::string number = absl::StrCat(step.key().step());
    const std::string version = absl::StrCat(step.key().policy_version());
    const std::string sequences = absl::StrCat(step.sequences());
    const std::string tokens = absl::StrCat(step.tokens());
    if (step.plans().empty()) table.AddRow({number, version, sequences, tokens, "not planned"});
    for (const v1::Plan& plan : step.plans()) {
      const v1::PlanSummary& summary = plan.summary();
      table.AddRow({number, version, sequences, tokens, plan.pass(), plan.ep_group(),
                    absl::StrFormat("%.4f", summary.imbalance_before()),
                    absl::StrFormat("%.4f", summary.imbalance_after()),
                    absl::StrFormat("%.4f", summary.lower_bound()), absl::StrCat(summary.moves()),
                    absl::StrCat(summary.replicas()), absl::StrCat(summary.bridges()),
                    absl::StrFormat("%.1f", 1e3 * summary.plan_seconds())});
    }
  }
  std::cout << "\n" << table.ToString();
}

void PrintJob(const v1::JobStatus& job) {
  const v1::JobSpec& spec = job.spec();
  std::cout << absl::StrFormat(
      "\njob %s: %d layers, %d experts, top-%d, %d x %d GPUs, %d slots\n", spec.job(),
      spec.model().moe_layer_ids_size(), spec.model().num_experts(), spec.model().top_k(),
      spec.topology().nodes(), spec.topology().gpus_per_node(), spec.topology().replica_slots());
  std::cout << absl::StrFormat("records %d, %.1f MB\n", job.records(),
                               static_cast<double>(job.record_bytes()) / 1e6);
  if (!job.last_error().empty()) std::cout << "last error: " << job.last_error() << "\n";
  PrintAgents(job);
  PrintSteps(job);
}

absl::Status RunStatus(const StatusFlags& flags) {
  PlannerClient client(flags.planner, flags.timeout_seconds);
  const absl::StatusOr<v1::GetStatusResponse> response = client.GetStatus(flags.job);
  if (!response.ok()) return response.status();
  if (flags.json) return PrintJson(*response);
  std::cout << absl::StrFormat("planner %s at %s, up %.0f s, %d jobs\n",
                               response->planner_version(), flags.planner,
                               response->uptime_seconds(), response->jobs_size());
  for (const v1::JobStatus& job : response->jobs()) PrintJob(job);
  return absl::OkStatus();
}

}  // namespace

Command AddStatusCommand(CLI::App& relibra) {
  CLI::App* command =
      relibra.add_subcommand("status", "Shows the jobs, agents and plans of a running planner.");
  auto flags = std::make_shared<StatusFlags>();
  command->add_option("--planner", flags->planner, "HOST:PORT")->required();
  command->add_option("--job", flags->job, "only this job");
  command->add_option("--timeout", flags->timeout_seconds, "seconds to wait for an answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", flags->json, "the planner's answer as JSON");
  return {.app = command, .run = [flags] { return RunStatus(*flags); }};
}

}  // namespace relibra::cli

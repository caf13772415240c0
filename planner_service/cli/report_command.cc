// relibra report: the policies on one recorded batch, as a page for people.

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"
#include "planner_service/cli/report/data.h"
#include "planner_service/cli/report/figures.h"
#include "planner_service/cli/report/page.h"
#include "planner_service/cli/simulation.h"
#include "planner_service/trace/file_bytes.h"

namespace relibra::cli {
namespace {

struct ReportFlags {
  SimulationFlags simulation;
  std::string plotly;
  std::string output;
};

void PrintLine(const ReportFlags& flags, const Simulation& simulation, size_t bytes) {
  const auto imbalance = [&simulation](Policy policy) {
    return simulation.outcomes.at(policy).result.imbalance_mean;
  };
  std::cout << absl::StrFormat(
      "%s: imbalance %.4f -> %.4f (eplb %.4f), modelled throughput %.2f x none, %.2f x eplb, "
      "%.1f %% of ideal; %.1f MB\n",
      flags.output, imbalance(Policy::kNone), imbalance(Policy::kRelibra), imbalance(Policy::kEplb),
      simulation.Speedup(Policy::kRelibra, Policy::kNone),
      simulation.Speedup(Policy::kRelibra, Policy::kEplb),
      100 * simulation.Speedup(Policy::kRelibra, Policy::kIdeal), static_cast<double>(bytes) / 1e6);
}

absl::Status RunReport(const ReportFlags& flags) {
  const absl::StatusOr<SimulationSetup> setup = SetupOf(flags.simulation);
  if (!setup.ok()) return setup.status();
  const absl::StatusOr<std::string> plotly = ReadPlotly(flags.plotly);
  if (!plotly.ok()) return plotly.status();
  Progress progress;
  const absl::StatusOr<Simulation> simulation = Simulate(flags.simulation, *setup, progress);
  if (!simulation.ok()) return simulation.status();
  progress.Say(absl::StrCat("writing ", flags.output));
  const absl::StatusOr<ReportFigures> figures =
      FiguresOf(simulation->batch.trace.loads, simulation->batch.current,
                simulation->outcomes.at(Policy::kRelibra).plan);
  if (!figures.ok()) {
    return absl::Status(figures.status().code(), absl::StrCat(flags.simulation.batch.trace, ": ",
                                                              figures.status().message()));
  }
  nlohmann::ordered_json data = ReportData(flags.simulation, *setup, *simulation, *figures);
  data["version"] = RELIBRA_VERSION;
  const std::string page = ReportPage(data, *plotly);
  if (absl::Status s = WriteFileBytes(flags.output, page); !s.ok()) return s;
  progress.Clear();
  PrintLine(flags, *simulation, page.size());
  return absl::OkStatus();
}

}  // namespace

Command AddReportCommand(CLI::App& relibra) {
  CLI::App* command = relibra.add_subcommand(
      "report",
      "Compares policies on a recorded batch in one HTML file: load maps, curves, costs.");
  auto flags = std::make_shared<ReportFlags>();
  AddSimulationFlags(*command, flags->simulation);
  command->add_option("--plotly", flags->plotly,
                      "Plotly's plotly.min.js; default: the one installed with this program");
  command->add_option("-o,--output", flags->output, "the report's file (.html)")->required();
  return {.app = command, .run = [flags] { return RunReport(*flags); }};
}

}  // namespace relibra::cli

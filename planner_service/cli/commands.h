// The commands of `relibra`. Each function adds one command with its flags to the application and
// returns what runs it, once the words are parsed. What it returns must not outlive the
// application.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_COMMANDS_H_
#define RELIBRA_PLANNER_SERVICE_CLI_COMMANDS_H_

#include <functional>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"

namespace relibra::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<absl::Status()> run;
};

Command AddPlanCommand(CLI::App& relibra);
Command AddSimulateCommand(CLI::App& relibra);
Command AddReportCommand(CLI::App& relibra);
Command AddBenchCommand(CLI::App& relibra);
Command AddStatusCommand(CLI::App& relibra);

// `trace generate`, `trace info`, `trace convert`, `trace fetch`.
std::vector<Command> AddTraceCommands(CLI::App& relibra);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_COMMANDS_H_

// The `relibra` command.

#include <exception>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "planner_service/cli/commands.h"
#include "planner_service/cli/console.h"

namespace relibra::cli {
namespace {

int RunRelibra(int argc, char** argv) {
  CLI::App app("ReLibra: plans where the experts of a MoE model live while it is trained.",
               "relibra");
  app.require_subcommand(1);
  app.set_version_flag("--version", "relibra " RELIBRA_VERSION);
  std::vector<Command> commands = AddTraceCommands(app);
  commands.push_back(AddPlanCommand(app));
  commands.push_back(AddSimulateCommand(app));
  commands.push_back(AddReportCommand(app));
  commands.push_back(AddBenchCommand(app));
  commands.push_back(AddStatusCommand(app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
        !unknown.empty()) {
      PrintError(absl::StrCat("\"", unknown[0], "\" is no command; see relibra --help"));
    } else {
      PrintError(error.what());
    }
    return kExitBadInput;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const absl::Status status = command.run();
    if (!status.ok()) PrintError(status.message());
    return ExitStatus(status);
  }
  return kExitBadInput;
}

}  // namespace
}  // namespace relibra::cli

int main(int argc, char** argv) {
  try {
    return relibra::cli::RunRelibra(argc, argv);
  } catch (const std::bad_alloc&) {
    relibra::cli::PrintError("out of memory");
  } catch (const std::exception& error) {
    relibra::cli::PrintError(error.what());
  }
  return relibra::cli::kExitFailed;
}

// The larger ones of the `trace` commands, each in a file of its own.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_TRACE_COMMAND_H_
#define RELIBRA_PLANNER_SERVICE_CLI_TRACE_COMMAND_H_

#include "CLI/App.hpp"
#include "planner_service/cli/commands.h"

namespace relibra::cli {

Command AddTraceGenerate(CLI::App& trace);
Command AddTraceInfo(CLI::App& trace);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_TRACE_COMMAND_H_

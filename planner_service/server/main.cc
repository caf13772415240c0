// relibra-planner: serves until SIGTERM or SIGINT, then drains. Exit status: 0 drained, 1 it could
// not serve, 2 the words are wrong.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "planner_service/server/flags.h"
#include "planner_service/server/planner_server.h"
#include "planner_service/server/version.h"

namespace relibra::server {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitBadWords = 2;

// Blocks the signals that stop the planner in this thread and all that it starts, so that main can
// wait for them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Written under another name first, so that whoever waits for the file finds it whole.
bool WritePortFile(const std::string& path, const PlannerServer& server) {
  const std::string unfinished = path + ".unfinished";
  {
    std::ofstream file(unfinished);
    file << "grpc " << server.port() << "\nmetrics " << server.metrics_port() << "\n";
    if (!file.flush()) return false;
  }
  return std::rename(unfinished.c_str(), path.c_str()) == 0;
}

int Run(const Flags& flags) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("planner"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  const sigset_t signals = BlockStopSignals();
  absl::StatusOr<std::unique_ptr<PlannerServer>> server = PlannerServer::Start(flags.server);
  if (!server.ok()) {
    std::cerr << "relibra-planner: " << server.status().message() << "\n";
    return absl::IsInvalidArgument(server.status()) ? kExitBadWords : kExitFailed;
  }
  if (!flags.port_file.empty() && !WritePortFile(flags.port_file, **server)) {
    std::cerr << "relibra-planner: --port-file: cannot write " << flags.port_file << "\n";
    return kExitFailed;
  }
  spdlog::info("event=serving version={} port={} metrics_port={}", kVersion, (*server)->port(),
               (*server)->metrics_port());
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("event=draining signal={}", signal);
  (*server)->Drain();
  spdlog::info("event=stopped");
  return 0;
}

}  // namespace
}  // namespace relibra::server

int main(int argc, char** argv) {
  relibra::server::Flags flags;
  const std::optional<int> exit_status = relibra::server::ParseFlags(argc, argv, flags);
  return exit_status.has_value() ? *exit_status : relibra::server::Run(flags);
}

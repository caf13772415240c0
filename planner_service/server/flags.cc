#include "planner_service/server/flags.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>

#include "planner_service/server/version.h"

namespace relibra::server {
namespace {

constexpr int kExitBadWords = 2;

void AddAddresses(CLI::App& app, Flags& flags) {
  const std::string group = "Addresses";
  app.add_option("--listen", flags.server.listen, "Where to serve gRPC; port 0 takes any free one")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--metrics-address", flags.server.metrics_address,
                 "Where to serve /metrics over HTTP; port 0 takes any free one, \"\" serves none")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--port-file", flags.port_file,
                 "Write the ports that were chosen to this file, as lines \"grpc PORT\" and "
                 "\"metrics PORT\", once the planner serves")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--insecure", flags.server.insecure,
               "Serve addresses that are not loopback without encryption (/metrics never has any)")
      ->group(group);
}

void AddTls(CLI::App& app, Flags& flags) {
  const auto file = [&](const char* name, std::string& path, const char* help) {
    app.add_option(name, path, help)->type_name("FILE")->group("TLS");
  };
  file("--tls-cert", flags.server.tls_cert,
       "The planner's certificate, PEM; the three files go together and are read again when they "
       "change");
  file("--tls-key", flags.server.tls_key, "Its private key, PEM");
  file("--tls-client-ca", flags.server.tls_client_ca,
       "Authorities that every client's certificate must come from, PEM");
}

void AddState(CLI::App& app, Flags& flags) {
  app.add_option("--state-file", flags.server.state_file,
                 "SQLite file in which jobs, homes and the kept plans survive a crash; made if "
                 "need be, locked against other planners. \"\" keeps them in memory only")
      ->type_name("FILE")
      ->group("State");
}

void AddThreads(CLI::App& app, Flags& flags) {
  const std::string group = "Threads";
  app.add_option("--planning-threads", flags.server.planning_threads,
                 "Threads that plan; 0: one a core")
      ->type_name("COUNT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--stream-threads", flags.server.stream_threads,
                 "Threads that count records and build messages; 0: one a core")
      ->type_name("COUNT")
      ->capture_default_str()
      ->group(group);
}

void AddQuotas(CLI::App& app, Flags& flags) {
  const std::string group = "Quotas";
  app.add_option("--max-jobs", flags.server.max_jobs, "Most jobs registered at once")
      ->type_name("COUNT")
      ->capture_default_str()
      ->group(group);
  const auto bytes = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)->type_name("BYTES")->capture_default_str()->group(group);
  };
  bytes("--max-message-bytes", flags.server.max_message_bytes, "Largest message that is taken");
  bytes("--max-step-bytes", flags.server.max_step_bytes,
        "Most memory for one step: records, loads and plans");
  bytes("--max-job-bytes", flags.server.max_job_bytes, "Most memory for one job");
  bytes("--max-memory-bytes", flags.server.max_memory_bytes,
        "Most memory for all jobs and for messages in work");
  app.add_option("--keep-steps", flags.server.keep_steps,
                 "Planned steps kept a job; older ones are forgotten")
      ->type_name("COUNT")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  CLI::App app(
      "Plans where the experts of MoE models live and are replicated, step by step.\n"
      "Serves the gRPC API relibra.v1.Planner, with health checks and reflection. SIGTERM and\n"
      "SIGINT drain: watches end, plans in flight are finished, the exit status is 0.");
  app.name("relibra-planner");
  app.set_version_flag("--version", std::string("relibra-planner ") + kVersion);
  AddAddresses(app, flags);
  AddTls(app, flags);
  AddState(app, flags);
  AddThreads(app, flags);
  AddQuotas(app, flags);
  double drain_seconds = absl::ToDoubleSeconds(flags.server.drain_time);
  app.add_option("--drain-seconds", drain_seconds,
                 "How long open calls may go on after a signal to stop")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--log-level", flags.log_level, "Least severity that is logged")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    std::cerr << "relibra-planner: " << error.what() << "\n";
    return kExitBadWords;
  }
  flags.server.drain_time = absl::Seconds(drain_seconds);
  return std::nullopt;
}

}  // namespace relibra::server

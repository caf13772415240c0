// The whole planner in one object: it listens, serves, drains.
//
//   absl::StatusOr<std::unique_ptr<PlannerServer>> server = PlannerServer::Start(options);
//   ...
//   (*server)->Drain();
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_PLANNER_SERVER_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_PLANNER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace relibra::server {

struct ServerOptions {
  // HOST:PORT to serve gRPC at; port 0: any free one.
  std::string listen = "127.0.0.1:7070";
  // HOST:PORT to serve /metrics at over HTTP; port 0: any free one; empty: nowhere.
  std::string metrics_address = "127.0.0.1:7071";
  // Allows addresses that are not loopback without encryption (/metrics never has any).
  bool insecure = false;
  // PEM files: the planner's certificate and key, and the authorities that clients' certificates
  // must come from. All or none of them; read again when they change.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;

  // The SQLite file in which jobs, homes and plans survive a crash; empty: they do not.
  std::string state_file;

  int planning_threads = 0;  // 0: as many as the machine has cores
  int stream_threads = 0;    // likewise

  int max_jobs = 1024;
  int64_t max_message_bytes = int64_t{64} << 20;
  int64_t max_step_bytes = int64_t{4} << 30;
  int64_t max_job_bytes = int64_t{8} << 30;
  int64_t max_memory_bytes = int64_t{16} << 30;
  int keep_steps = 4;

  // How long open calls may go on after the planner began to drain.
  absl::Duration drain_time = absl::Seconds(10);
};

// Start and Drain are for the owner's thread; the rest any thread may call.
class PlannerServer {
 public:
  // Listens and serves until Drain. INVALID_ARGUMENT naming a bad option; UNAVAILABLE when an
  // address cannot be listened at or the state file not used; other codes when what it holds cannot
  // be restored.
  static absl::StatusOr<std::unique_ptr<PlannerServer>> Start(const ServerOptions& options);

  // Drains, if that was not done yet.
  ~PlannerServer();

  // The ports that were chosen; 0 for metrics that are not served.
  int port() const;
  int metrics_port() const;

  // Says NOT_SERVING, ends watches and waiting calls with UNAVAILABLE, finishes plans in flight and
  // open calls (the latter within drain_time), and stops.
  void Drain();

 private:
  struct Parts;

  explicit PlannerServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_PLANNER_SERVER_H_

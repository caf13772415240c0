#include "planner_service/server/planner_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner_service/server/service.h"
#include "planner_service/server/state_metrics.h"
#include "planner_service/server/state_store.h"

namespace relibra::server {
namespace {

constexpr char kServiceName[] = "relibra.v1.Planner";

struct Address {
  std::string host;
  int port = 0;

  bool is_loopback() const {
    return host == "localhost" || host == "[::1]" || host.rfind("127.", 0) == 0;
  }
};

absl::StatusOr<Address> ParseAddress(absl::string_view flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  if (colon != std::string::npos && colon != 0 &&
      absl::SimpleAtoi(text.substr(colon + 1), &address.port) && address.port >= 0 &&
      address.port <= 65535) {
    address.host = text.substr(0, colon);
    return address;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": expected HOST:PORT with a port of 0 to 65535, got \"", text, "\""));
}

absl::Status CheckAddress(absl::string_view flag, const std::string& text, bool insecure) {
  absl::StatusOr<Address> address = ParseAddress(flag, text);
  if (!address.ok()) return address.status();
  if (address->is_loopback() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", text, " is not a loopback address; without encryption that needs ",
                   "--insecure"));
}

// OK when TLS is not asked for or its three files are there.
absl::Status CheckTls(const ServerOptions& options) {
  if (options.tls_cert.empty() && options.tls_key.empty() && options.tls_client_ca.empty()) {
    return absl::OkStatus();
  }
  for (const auto& [flag, path] :
       {std::pair<const char*, const std::string&>{"--tls-cert", options.tls_cert},
        {"--tls-key", options.tls_key},
        {"--tls-client-ca", options.tls_client_ca}}) {
    if (path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, ": expected a PEM file; --tls-cert, --tls-key and --tls-client-ca go together"));
    }
    if (!std::ifstream(path)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Credentials(const ServerOptions& options) {
  if (options.tls_cert.empty()) return grpc::InsecureServerCredentials();
  constexpr unsigned kSecondsBetweenLooks = 10;
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options.tls_key, options.tls_cert, options.tls_client_ca, kSecondsBetweenLooks));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(tls);
}

absl::Status CheckLimits(const ServerOptions& options) {
  for (auto [flag, value] : {std::pair<const char*, int64_t>{"--max-jobs", options.max_jobs},
                             {"--max-message-bytes", options.max_message_bytes},
                             {"--max-step-bytes", options.max_step_bytes},
                             {"--max-job-bytes", options.max_job_bytes},
                             {"--max-memory-bytes", options.max_memory_bytes},
                             {"--keep-steps", options.keep_steps}}) {
    if (value < 1) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": expected at least 1, got ", value));
    }
  }
  // gRPC counts a message's bytes in an int.
  constexpr int64_t kMost = int64_t{1} << 30;
  if (options.max_message_bytes > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("--max-message-bytes: expected at most ", kMost,
                                                   ", got ", options.max_message_bytes));
  }
  for (auto [flag, value] :
       {std::pair<const char*, int>{"--planning-threads", options.planning_threads},
        {"--stream-threads", options.stream_threads}}) {
    if (value < 0 || value > 1024) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": expected 0 to 1024, got ", value));
    }
  }
  return absl::OkStatus();
}

int ThreadsOrCores(int threads) {
  if (threads > 0) return threads;
  return std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
}

JobLimits LimitsOf(const ServerOptions& options) {
  return {.max_jobs = options.max_jobs,
          .max_job_bytes = options.max_job_bytes,
          .steps = {.max_step_bytes = options.max_step_bytes, .keep_steps = options.keep_steps}};
}

}  // namespace

// Members are destroyed from the last to the first: what is called before what calls it.
struct PlannerServer::Parts {
  Parts(const ServerOptions& options, std::unique_ptr<StateStore> state_store)
      : options(options),
        store(std::move(state_store)),
        account(MemoryAccount::Create("planner", "--max-memory-bytes", options.max_memory_bytes,
                                      nullptr)),
        jobs(account, LimitsOf(options), *store),
        planning_pool(ThreadsOrCores(options.planning_threads)),
        stream_pool(ThreadsOrCores(options.stream_threads)),
        planner(planning_pool, *store, metrics),
        state_metrics(std::make_shared<StateMetrics>(jobs, planning_pool, stream_pool, account)),
        service({.jobs = jobs,
                 .planner = planner,
                 .stream_pool = stream_pool,
                 .planning_pool = planning_pool,
                 .metrics = metrics,
                 .store = *store,
                 .open_streams = open_streams,
                 .account = account,
                 .max_message_bytes = options.max_message_bytes,
                 .started = absl::Now()}) {}

  const ServerOptions options;
  std::unique_ptr<StateStore> store;
  Metrics metrics;
  std::shared_ptr<MemoryAccount> account;
  JobRegistry jobs;
  OpenStreams open_streams;
  WorkerPool planning_pool;
  WorkerPool stream_pool;
  StepPlanner planner;
  std::shared_ptr<StateMetrics> state_metrics;
  PlannerService service;
  std::unique_ptr<prometheus::Exposer> exposer;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

namespace {

absl::Status ServeMetrics(const ServerOptions& options, Metrics& metrics,
                          const std::shared_ptr<StateMetrics>& state_metrics,
                          std::unique_ptr<prometheus::Exposer>& exposer) {
  try {
    constexpr int kThreads = 2;
    exposer = std::make_unique<prometheus::Exposer>(options.metrics_address, kThreads);
    exposer->RegisterCollectable(metrics.registry());
    exposer->RegisterCollectable(state_metrics);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("--metrics-address: cannot listen at ",
                                               options.metrics_address, ": ", error.what()));
  }
  return absl::OkStatus();
}

std::unique_ptr<grpc::Server> ServeGrpc(const ServerOptions& options, PlannerService& service,
                                        int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, Credentials(options), &port);
  builder.RegisterService(&service);
  // The calls refuse larger messages themselves, so that the refusal can name the flag. gRPC would
  // refuse them only once they are whole, too; its memory is bounded by the quota below.
  builder.SetMaxReceiveMessageSize(-1);
  // What gRPC buffers for all connections, beside what the planner holds.
  grpc::ResourceQuota quota("planner");
  quota.Resize(
      static_cast<size_t>(std::max(options.max_memory_bytes / 4, 4 * options.max_message_bytes)));
  builder.SetResourceQuota(quota);
  // Without this a second planner could listen at the same port unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Notices within a minute that the host of a silent agent is gone.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  // Only reflection is served by threads of this kind.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  return builder.BuildAndStart();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannerServer>> PlannerServer::Start(const ServerOptions& options) {
  absl::Status status = CheckTls(options);
  if (status.ok()) {
    status =
        CheckAddress("--listen", options.listen, options.insecure || !options.tls_cert.empty());
  }
  if (status.ok() && !options.metrics_address.empty()) {
    status = CheckAddress("--metrics-address", options.metrics_address, options.insecure);
  }
  if (status.ok()) status = CheckLimits(options);
  if (!status.ok()) return status;
  static const bool plugins_added = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins_added;

  std::unique_ptr<StateStore> store = NewForgetfulStateStore();
  if (!options.state_file.empty()) {
    absl::StatusOr<std::unique_ptr<StateStore>> opened = OpenSqliteStateStore(options.state_file);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  auto parts = std::make_unique<Parts>(options, std::move(store));
  status = parts->jobs.Restore();
  if (!status.ok()) return status;
  for (const auto& job : parts->jobs.All()) parts->metrics.JobAdded(job->job().name());
  if (!options.metrics_address.empty()) {
    status = ServeMetrics(options, parts->metrics, parts->state_metrics, parts->exposer);
    if (!status.ok()) return status;
  }
  parts->server = ServeGrpc(options, parts->service, parts->port);
  if (parts->server == nullptr) {
    return absl::UnavailableError(absl::StrCat("--listen: cannot listen at ", options.listen));
  }
  parts->server->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  return std::unique_ptr<PlannerServer>(new PlannerServer(std::move(parts)));
}

PlannerServer::PlannerServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

PlannerServer::~PlannerServer() { Drain(); }

int PlannerServer::port() const { return parts_->port; }

int PlannerServer::metrics_port() const {
  return parts_->exposer == nullptr ? 0 : parts_->exposer->GetListeningPorts().front();
}

void PlannerServer::Drain() {
  if (parts_->server == nullptr) return;
  const absl::Status draining = absl::UnavailableError("the planner is shutting down");
  parts_->server->GetHealthCheckService()->SetServingStatus(false);
  parts_->open_streams.EndAll(draining);
  parts_->jobs.CloseAll(draining);
  parts_->server->Shutdown(absl::ToChronoTime(absl::Now() + parts_->options.drain_time));
  parts_->server->Wait();
  parts_->planning_pool.WaitUntilIdle();
  parts_->stream_pool.WaitUntilIdle();
  parts_->server.reset();
}

}  // namespace relibra::server

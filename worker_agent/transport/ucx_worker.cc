#include "worker_agent/transport/ucx_worker.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace relibra::transport {
namespace {

// The longest sleep of the serving thread, in case an event is lost.
constexpr absl::Duration kServeNap = absl::Milliseconds(50);
// A waiter sleeps less: another waiter may have taken its event.
constexpr absl::Duration kWaitNap = absl::Milliseconds(2);
// Empty polls before a waiter sleeps; sleeping costs two system calls.
constexpr int kSpins = 100;

// Whether a list of transports takes in one of the shared-memory transports.
bool MayUse(const std::string& transports, const std::string& name) {
  const std::vector<std::string> names = absl::StrSplit(transports, ',');
  return transports.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& t) {
           return t == name || t == "mm" || t == "sm" || t == "shm" || t == "all";
         });
}

}  // namespace

absl::Status UcxError(ucs_status_t status, const std::string& what) {
  const std::string message = absl::StrCat(what, ": UCX says ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
      return absl::UnavailableError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::UnimplementedError(message);
    case UCS_ERR_TIMED_OUT:
      return absl::DeadlineExceededError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const std::string& transports,
                                                             const std::string& net_devices,
                                                             bool peer_errors,
                                                             absl::Duration keepalive) {
  if (peer_errors) {
    // Off in UCX's own defaults; without it shared memory is left out of endpoints that handle
    // errors. UCX takes these two from the environment alone; the user's own values stand.
    if (MayUse(transports, "posix")) setenv("UCX_POSIX_ERROR_HANDLING", "y", /*overwrite=*/0);
    if (MayUse(transports, "sysv")) setenv("UCX_SYSV_ERROR_HANDLING", "y", /*overwrite=*/0);
  }
  ucp_config_t* config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) {
    return UcxError(s, "reading UCX's configuration");
  }
  absl::Cleanup release_config = [config] { ucp_config_release(config); };
  const auto set = [config](const char* name, const std::string& value) -> absl::Status {
    if (value.empty()) return absl::OkStatus();
    const ucs_status_t s = ucp_config_modify(config, name, value.c_str());
    return s == UCS_OK ? absl::OkStatus()
                       : UcxError(s, absl::StrCat("setting UCX_", name, "=", value));
  };
  if (absl::Status s = set("TLS", transports); !s.ok()) return s;
  if (absl::Status s = set("NET_DEVICES", net_devices); !s.ok()) return s;
  const std::string interval = absl::StrCat(absl::ToInt64Milliseconds(keepalive), "ms");
  if (absl::Status s = set("KEEPALIVE_INTERVAL", interval); !s.ok()) return s;

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  if (ucs_status_t s = ucp_init(&params, config, &context); s != UCS_OK) {
    return UcxError(s, absl::StrCat("starting UCX with transports '", transports, "'"));
  }
  absl::Cleanup destroy_context = [context] { ucp_cleanup(context); };

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  if (ucs_status_t s = ucp_worker_create(context, &worker_params, &worker); s != UCS_OK) {
    return UcxError(s, "creating a UCX worker");
  }
  absl::Cleanup destroy_worker = [worker] { ucp_worker_destroy(worker); };
  int event_fd = -1;
  if (ucs_status_t s = ucp_worker_get_efd(worker, &event_fd); s != UCS_OK) {
    return UcxError(s, "asking UCX for its event descriptor");
  }
  std::move(destroy_worker).Cancel();
  std::move(destroy_context).Cancel();
  auto result = std::unique_ptr<UcxWorker>(new UcxWorker(context, worker, event_fd));
  result->thread_ = std::thread([raw = result.get()] { raw->Serve(); });
  return result;
}

UcxWorker::~UcxWorker() {
  StopThread();
  if (abandoned_) return;
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

absl::StatusOr<std::string> UcxWorker::Address() {
  absl::MutexLock lock(&mutex_);
  ucp_address_t* address = nullptr;
  size_t length = 0;
  if (ucs_status_t s = ucp_worker_get_address(worker_, &address, &length); s != UCS_OK) {
    return UcxError(s, "asking UCX for its address");
  }
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

bool UcxWorker::Wait(absl::FunctionRef<bool()> done, absl::Time deadline) {
  int idle = 0;
  mutex_.Lock();
  ++waiters_;
  bool finished = false;
  while (true) {
    const unsigned events = ucp_worker_progress(worker_);
    finished = done();
    if (finished) break;
    idle = events == 0 ? idle + 1 : 0;
    // The clock is read only when UCX has nothing to do, and not every time.
    if (idle % 16 == 1 || events == 0) {
      if (absl::Now() >= deadline) break;
    }
    mutex_.Unlock();
    if (idle >= kSpins) Sleep(std::min(kWaitNap, deadline - absl::Now()));
    mutex_.Lock();
  }
  --waiters_;
  mutex_.Unlock();
  return finished;
}

void UcxWorker::Progress() {
  absl::MutexLock lock(&mutex_);
  while (ucp_worker_progress(worker_) != 0) {
  }
}

void UcxWorker::Sleep(absl::Duration longest) {
  {
    absl::MutexLock lock(&mutex_);
    if (ucp_worker_arm(worker_) != UCS_OK) return;  // events are waiting
  }
  pollfd descriptor = {.fd = event_fd_, .events = POLLIN, .revents = 0};
  const int64_t milliseconds = std::max<int64_t>(1, absl::ToInt64Milliseconds(longest));
  poll(&descriptor, 1, static_cast<int>(milliseconds));
}

void UcxWorker::Serve() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || waiters_ == 0;
      };
      mutex_.Await(absl::Condition(&wanted));
      if (stop_) return;
      for (int i = 0; i < kSpins && ucp_worker_progress(worker_) != 0; ++i) {
      }
    }
    Sleep(kServeNap);
  }
}

void UcxWorker::StopThread() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    ucp_worker_signal(worker_);
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace relibra::transport

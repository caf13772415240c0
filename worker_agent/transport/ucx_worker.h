// One UCX context and worker, with a thread that serves peers while the owner computes.
#ifndef RELIBRA_WORKER_AGENT_TRANSPORT_UCX_WORKER_H_
#define RELIBRA_WORKER_AGENT_TRANSPORT_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace relibra::transport {

// `what` and UCX's own words as a Status: UNAVAILABLE for a lost or unreachable peer.
absl::Status UcxError(ucs_status_t status, const std::string& what);

// Thread-safe: every use of the worker happens under mutex(). While nobody waits in Wait, the
// worker's own thread progresses it, asleep until UCX signals an event.
class UcxWorker {
 public:
  // `transports`: as in UCX_TLS, e.g. "tcp,self"; empty: UCX's own choice, or the environment's.
  // `net_devices`: as in UCX_NET_DEVICES; empty likewise. `peer_errors`: endpoints will handle
  // errors; silent peers are then probed every `keepalive`.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const std::string& transports,
                                                           const std::string& net_devices,
                                                           bool peer_errors,
                                                           absl::Duration keepalive);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return worker_; }

  // The worker's address for its peers.
  absl::StatusOr<std::string> Address();

  // Progresses until done() (called under mutex()) is true or the deadline passes; false then.
  bool Wait(absl::FunctionRef<bool()> done, absl::Time deadline);

  // Progresses once.
  void Progress();

  // Leaves UCX's worker and context allocated when this object goes: UCX (seen with 1.13) aborts
  // the process when a worker with unfinished requests is destroyed.
  void Abandon() { abandoned_ = true; }

  // Stops the thread; Wait and Progress may still be called. Idempotent.
  void StopThread();

 private:
  UcxWorker(ucp_context_h context, ucp_worker_h worker, int event_fd)
      : context_(context), event_fd_(event_fd), worker_(worker) {}

  void Serve();
  // Sleeps until UCX has an event or `longest` is over. Does not hold the mutex while asleep.
  void Sleep(absl::Duration longest);

  const ucp_context_h context_;
  const int event_fd_;
  absl::Mutex mutex_;
  const ucp_worker_h worker_;
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ = false;  // of the owner's thread
  std::thread thread_;
};

}  // namespace relibra::transport

#endif  // RELIBRA_WORKER_AGENT_TRANSPORT_UCX_WORKER_H_

// The UCX transport: RDMA, shared memory or TCP, whatever UCX finds (or is told to use).
#ifndef RELIBRA_WORKER_AGENT_TRANSPORT_UCX_H_
#define RELIBRA_WORKER_AGENT_TRANSPORT_UCX_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/transport/transport.h"

namespace relibra::transport {

// Whether peers' memory is read with ucp_get.
enum class OneSided {
  // Where the hardware does it: with RDMA, or inside a host with cma. Where UCX would emulate it by
  // messages (tcp), the agent's own messages do the same, for UCX (seen with 1.13) aborts the
  // target
  // of an emulated get whose reader has died.
  kAuto,
  kOn,
  kOff,
};

struct UcxOptions {
  int rank = 0;
  int size = 1;
  // As in UCX_TLS, e.g. "tcp,self" or "posix,cma,self"; empty: UCX_TLS, or UCX's own choice.
  std::string transports = {};
  // As in UCX_NET_DEVICES; empty likewise. Naming a single device can switch off NVLink lanes.
  std::string net_devices = {};
  OneSided one_sided = OneSided::kAuto;
  // UCP_ERR_HANDLING_MODE_PEER on every endpoint: a dead peer is noticed at once instead of by the
  // deadline. It switches on UCX_POSIX_ERROR_HANDLING and UCX_SYSV_ERROR_HANDLING in the process's
  // environment where they are not set, for UCX would otherwise leave shared memory out; so create
  // the transport before other threads use the environment. Some UCX versions drop their fastest
  // lane (cuda_ipc) under it, hence the setting.
  bool peer_error_handling = true;
  // How often silent peers are probed under peer_error_handling.
  absl::Duration keepalive = absl::Seconds(1);
  // How long the destructor flushes what was sent before it closes by force.
  absl::Duration close_timeout = absl::Seconds(5);
};

// A transport with its own UCX worker and a thread that serves peers. After a failure its
// destructor closes what it can and leaves UCX's worker allocated until the process ends.
// UNIMPLEMENTED when UCX knows none of the transports named.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace relibra::transport

#endif  // RELIBRA_WORKER_AGENT_TRANSPORT_UCX_H_

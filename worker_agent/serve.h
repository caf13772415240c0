// `relibra-agent serve`: follows a job's plans with memory of its own, for checking a cluster
// without GPUs and for soak tests.
#ifndef RELIBRA_WORKER_AGENT_SERVE_H_
#define RELIBRA_WORKER_AGENT_SERVE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "worker_agent/agent.h"

namespace relibra::agent {

struct ServeOptions {
  std::string planner;  // HOST:PORT
  std::string job;
  std::string ep_group = "ep0";
  int rank = 0;
  uint32_t from_step = 0;
  // Steps to follow; 0: until it is told to stop.
  uint32_t steps = 0;
  std::string pass = "update";
  std::string transports = {};
  std::string net_devices = {};
  bool peer_error_handling = true;
  AgentOptions agent = {};
  absl::Duration join_timeout = absl::Minutes(5);
};

// Takes shape and sizes from the job's spec at the planner. For every step: moves homes, and for
// every (micro-batch, layer) fetches replicas and returns their (zero) gradients, as a trainer
// would. A step without a plan is waited for again. `stop` ends it after the present step, on this
// rank; the others then end with an error. Returns the exit status: 0, or 1 after one line on
// standard error.
int RunServe(const ServeOptions& options, const std::atomic<bool>& stop);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_SERVE_H_

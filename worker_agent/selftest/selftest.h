// `relibra-agent selftest`: trains a real, small MoE model as one rank of a group, with plans from
// a planner, and compares every number with a single-process reference.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_SELFTEST_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_SELFTEST_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "worker_agent/agent.h"
#include "worker_agent/selftest/scenario.h"
#include "worker_agent/selftest/trainer.h"

namespace relibra::agent::selftest {

struct SelfTestOptions {
  std::string planner;  // HOST:PORT
  std::string job = "selftest";
  int rank = 0;
  Scenario scenario = {};
  int steps = 3;
  // Steps for which a plan is asked; the steps after them wait for one in vain.
  int planned_steps = 1 << 30;
  Sabotage sabotage = Sabotage::kNone;
  std::string transports = {};  // as in UCX_TLS
  std::string net_devices = {};
  bool peer_error_handling = true;
  AgentOptions agent = {};
  // How long the group may take to come together.
  absl::Duration join_timeout = absl::Seconds(60);
  double tolerance = 1e-5;
  // Fail unless the steps together moved homes and made replicas.
  bool require_changes = true;
  // Fail unless every step followed its plan.
  bool require_applied = true;
  // Kill this process at its k-th fetch of an expert's buffer (from 1); 0: never.
  int64_t die_at_fetch = 0;
};

// Runs one rank and prints one line of JSON to `out`. 0: everything agreed; 1: it did
// not, or the run failed (the line says whether this rank's weights are intact); 2: the options are
// wrong (one line on standard error).
int RunSelfTest(const SelfTestOptions& options, std::FILE* out);

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_SELFTEST_H_

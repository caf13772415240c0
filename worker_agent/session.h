// An agent that has found its group: planner, transport and agent, put together.
#ifndef RELIBRA_WORKER_AGENT_SESSION_H_
#define RELIBRA_WORKER_AGENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/agent.h"
#include "worker_agent/planner_client.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

// Owned and used by one thread.
class Session {
 public:
  // Makes this rank known at the planner, waits for the others, connects, creates the agent, and
  // starts to watch plans from `from_step` on. Experts lie as `placement` says.
  static absl::StatusOr<std::unique_ptr<Session>> Join(
      const PlannerClientOptions& group, std::unique_ptr<PlannerClient> planner,
      std::unique_ptr<transport::Transport> transport, std::unique_ptr<ExpertStore> store,
      const Placement& placement, const AgentOptions& options, uint32_t from_step,
      absl::Time deadline);

  Agent& agent() { return *agent_; }
  transport::Transport& transport() { return *transport_; }

 private:
  Session(std::unique_ptr<PlannerClient> planner, std::unique_ptr<transport::Transport> transport,
          std::unique_ptr<Agent> agent)
      : planner_(std::move(planner)), transport_(std::move(transport)), agent_(std::move(agent)) {}

  // In order of need: the agent goes first.
  std::unique_ptr<PlannerClient> planner_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Agent> agent_;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_SESSION_H_

// Where an agent's plans come from: the planner, or a test.
#ifndef RELIBRA_WORKER_AGENT_PLAN_SOURCE_H_
#define RELIBRA_WORKER_AGENT_PLAN_SOURCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "relibra/v1/agent.pb.h"
#include "worker_agent/plan.h"

namespace relibra::agent {

// Thread-safe.
class PlanSource {
 public:
  virtual ~PlanSource() = default;

  // The complete plan of a pass of a step. DEADLINE_EXCEEDED when it has not come by the deadline,
  // INVALID_ARGUMENT when what came is no valid plan for this rank.
  virtual absl::StatusOr<std::shared_ptr<const Plan>> WaitForPlan(const StepId& id,
                                                                  absl::Time deadline) = 0;

  // Passes on what this rank did with a step. Never blocks and never fails: a report that cannot be
  // delivered is lost.
  virtual void Report(const v1::StepReport& report) = 0;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_PLAN_SOURCE_H_

// What the orchestrator and the rollout workers of a real run would say to the planner.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_ORCHESTRATOR_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_ORCHESTRATOR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "relibra/v1/planner.grpc.pb.h"
#include "worker_agent/selftest/scenario.h"

namespace relibra::agent::selftest {

// Not thread-safe. The stub outlives it.
class Orchestrator {
 public:
  Orchestrator(v1::Planner::StubInterface& stub, const Scenario& scenario, std::string job)
      : stub_(stub), scenario_(scenario), job_(std::move(job)) {}

  // Registers the job, or finds it registered. Tries again while the planner cannot be reached.
  absl::Status Register(absl::Time deadline);
  // Streams the routes of a rank's sequences of a step.
  absl::Status StreamRoutes(int step, int rank, absl::Time deadline);
  // Asks for the plan of a step, once all ranks have streamed.
  absl::Status PlanStep(int step, absl::Time deadline);

 private:
  v1::JobSpec Spec() const;
  std::string SequenceId(int micro_batch, int rank, int sequence) const;

  v1::Planner::StubInterface& stub_;
  const Scenario scenario_;
  const std::string job_;
};

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_ORCHESTRATOR_H_

// Compares one rank's training with the reference, and its loads with the plan.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_COMPARISON_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_COMPARISON_H_

#include <cstdint>
#include <vector>

#include "worker_agent/agent.h"
#include "worker_agent/selftest/reference.h"
#include "worker_agent/selftest/trainer.h"

namespace relibra::agent::selftest {

// Largest relative errors: of a tensor, the largest difference of an element over the largest
// element of the reference.
struct Errors {
  double outputs = 0;
  double gradients = 0;
  double weights = 0;
  double momenta = 0;

  double Largest() const;
  void Take(const Errors& other);
};

// This rank's tokens and home experts after a step, against the reference after the same step.
Errors Compare(const Scenario& scenario, int rank, Agent& agent, const Trainer& trainer,
               const Reference& reference);

// The weights and momenta of this rank's home experts alone.
Errors CompareExperts(const Scenario& scenario, int rank, Agent& agent, const Reference& reference);

// Loads of a step: [micro_batches, layers, experts], (token, choice) pairs of all ranks.
std::vector<uint32_t> LoadsOf(const Scenario& scenario, int step);

// What each rank has to compute: [micro_batches, layers, ranks]. plan: null for no replicas.
std::vector<uint32_t> ExpectedWork(const Scenario& scenario, const std::vector<uint32_t>& loads,
                                   const Placement& placement, const Plan* plan);

// Mean over (micro-batch, layer) of max over ranks / mean over ranks of work
// [micro_batches, layers, ranks].
double Imbalance(const std::vector<uint32_t>& work, int ranks);

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_COMPARISON_H_

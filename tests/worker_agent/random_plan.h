// Valid plans at random, as a planner that cares about nothing but the rules might make them.
#ifndef RELIBRA_TESTS_WORKER_AGENT_RANDOM_PLAN_H_
#define RELIBRA_TESTS_WORKER_AGENT_RANDOM_PLAN_H_

#include <cstdint>
#include <random>
#include <vector>

#include "relibra/v1/plan.pb.h"
#include "worker_agent/group_shape.h"
#include "worker_agent/placement.h"

namespace relibra::agent {

struct RandomPlanOptions {
  uint32_t step = 0;
  double move_share = 0.5;     // of experts, about
  double replica_share = 0.6;  // of replica slots, about
  int bridges = 1;             // a layer, at most
};

// loads: [micro_batches][layers][sources][experts]. Splits are given in full. `previous`: where the
// experts are before the step.
v1::Plan RandomPlan(const GroupShape& shape, const Placement& previous,
                    const std::vector<std::vector<std::vector<std::vector<uint32_t>>>>& loads,
                    const RandomPlanOptions& options, std::mt19937_64& random);

}  // namespace relibra::agent

#endif  // RELIBRA_TESTS_WORKER_AGENT_RANDOM_PLAN_H_

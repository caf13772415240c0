// The plan of a step as one agent holds it: checked, and cut to what its rank needs.
#ifndef RELIBRA_WORKER_AGENT_PLAN_H_
#define RELIBRA_WORKER_AGENT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "relibra/v1/plan.pb.h"
#include "worker_agent/group_shape.h"

namespace relibra::agent {

// Which pass of which step.
struct StepId {
  uint32_t step = 0;
  uint32_t policy_version = 0;
  std::string pass = "update";

  friend bool operator==(const StepId&, const StepId&) = default;
};

struct Replica {
  int expert = 0;
  int rank = 0;
  int slot = 0;         // replica slot, 0..R-1
  uint32_t tokens = 0;  // it serves, over all source ranks
  bool bridge = false;  // in another node than the home, in every micro-batch of the layer
};

// How many of this rank's own tokens an instance of a replicated expert serves.
struct Quota {
  int expert = 0;
  int rank = 0;
  uint32_t tokens = 0;
};

struct MicroBatchPlan {
  std::vector<Replica> replicas;  // ascending by (expert, rank)
  std::vector<Quota> quotas;      // ascending by (expert, rank); only replicated experts
};

struct LayerPlan {
  std::vector<int32_t> home_rank;             // [E]
  std::vector<MicroBatchPlan> micro_batches;  // [M]
};

struct Plan {
  StepId id;
  std::string digest;
  std::vector<LayerPlan> layers;  // [L], in the order of GroupShape::layer_ids
};

// Takes a complete plan message (header and layers together) as rank `rank` of the group.
// INVALID_ARGUMENT naming layer, micro-batch, expert and rank when it breaks a rule of plans: a
// topology or layers other than the group's, a rank that is not home to E/P experts, a replica on
// its home, twice on a rank, out of its home's node without being a bridge, on a slot that is used
// twice or out of range, a bridge that changes during the step, a quota of a rank that holds no
// instance.
absl::StatusOr<Plan> ReadPlan(const v1::Plan& message, const GroupShape& shape, int rank);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_PLAN_H_

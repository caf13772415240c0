// Cuts the moves of a step into rounds that need little spare memory.
//
// The moves of a layer are a permutation, so as edges between ranks they fall into cycles that
// visit a rank at most once. A cycle takes one piece of spare memory on each of its ranks and
// leaves every rank with as many experts as before: after any set of whole cycles the placement is
// a valid one. A round is as many cycles as fit.
#ifndef RELIBRA_WORKER_AGENT_MOVE_ROUNDS_H_
#define RELIBRA_WORKER_AGENT_MOVE_ROUNDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_agent/group_shape.h"
#include "worker_agent/home_mover.h"
#include "worker_agent/placement.h"
#include "worker_agent/plan.h"

namespace relibra::agent {

// Most experts that may arrive at a rank in one round; both at least 1.
struct RoundLimits {
  int per_layer = 2;
  int64_t in_all = int64_t{1} << 40;
};

// One step of the way: the transfers, and the placement once they are installed.
struct MoveRound {
  Placement after;
  std::vector<Transfer> transfers;
};

// From `now` to the homes home_rank [L][E]; empty when nothing moves. Every rank computes the same.
absl::StatusOr<std::vector<MoveRound>> MoveRounds(
    const Placement& now, const std::vector<std::vector<int32_t>>& home_rank,
    const GroupShape& shape, const RoundLimits& limits);

// The bridges of a plan, read from the homes of `placement`, in rounds likewise.
std::vector<MoveRound> BridgeRounds(const Placement& placement, const Plan& plan,
                                    const GroupShape& shape, const RoundLimits& limits);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_MOVE_ROUNDS_H_

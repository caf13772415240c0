// Which instance serves each of this rank's tokens, from the plan's quotas.
#ifndef RELIBRA_WORKER_AGENT_DISPATCH_MAP_H_
#define RELIBRA_WORKER_AGENT_DISPATCH_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/instance_map.h"
#include "worker_agent/group_shape.h"
#include "worker_agent/placement.h"
#include "worker_agent/plan.h"

namespace relibra::agent {

// The instances of every expert of one (layer, micro-batch) with this rank's quotas, in the form
// that the kernels take; a trainer copies the arrays to its device. Slots are physical slots.
struct Instances {
  std::vector<int32_t> offsets;  // [E + 1]
  std::vector<int32_t> rank;     // [offsets[E]]
  std::vector<int32_t> slot;     // [offsets[E]]
  std::vector<uint32_t> quota;   // [offsets[E]]

  InstanceTable Table() const {
    return {static_cast<int64_t>(offsets.size()) - 1, offsets.data(), rank.data(), slot.data(),
            quota.data()};
  }
};

// micro_batch: null when there are no replicas: every token goes home.
Instances InstancesOf(const GroupShape& shape, const Placement& placement, int layer,
                      const MicroBatchPlan* micro_batch);

// Where this rank's tokens of one (layer, micro-batch) go. A destination is a physical slot of some
// rank, numbered rank * physical_slots + slot.
struct DispatchMap {
  std::vector<int32_t> rank;           // [tokens, top_k], -1: not routed
  std::vector<int32_t> slot;           // [tokens, top_k], -1: not routed
  std::vector<int64_t> counts;         // [destinations], rows for each
  std::vector<int64_t> offsets;        // [destinations + 1], first row of each
  std::vector<int32_t> row_of_choice;  // [tokens, top_k], -1: not routed
  std::vector<int32_t> choice_of_row;  // [tokens * top_k], -1 from the number of rows on
  // (token, choice) pairs of replicated experts by which the actual tokens differ from the planned
  // ones, plus those that had no route. All tokens are served nevertheless, in proportion.
  uint64_t unplanned = 0;

  int64_t rows() const { return offsets.empty() ? 0 : offsets.back(); }
};

// Maps this rank's routed ids on the CPU. INVALID_ARGUMENT naming the position of an id that is no
// expert.
absl::StatusOr<DispatchMap> MapTokens(const GroupShape& shape, const Instances& instances,
                                      const LayerIds& ids);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_DISPATCH_MAP_H_

#include "worker_agent/dispatch_map.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/destination_order.h"
#include "kernels/executor.h"

namespace relibra::agent {
namespace {

// Scratch memory, aligned as the kernels want it.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : memory_(bytes + 256) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 256;
    workspace_ = {memory_.data() + (misaligned == 0 ? 0 : 256 - misaligned), bytes};
  }
  const Workspace& workspace() const { return workspace_; }

 private:
  std::vector<char> memory_;
  Workspace workspace_;
};

// Differences from the plan, of experts whose tokens are planned by instance.
uint64_t CountUnplanned(const GroupShape& shape, const Instances& instances,
                        const DispatchMap& map) {
  std::vector<uint64_t> home_of(static_cast<size_t>(shape.ranks()) * shape.physical_slots(), 0);
  std::vector<uint64_t> actual(shape.experts, 0);
  // Which expert sits in each destination.
  for (int e = 0; e < shape.experts; ++e) {
    for (int32_t i = instances.offsets[e]; i < instances.offsets[e + 1]; ++i) {
      home_of[static_cast<size_t>(instances.rank[i]) * shape.physical_slots() + instances.slot[i]] =
          e;
    }
  }
  for (size_t d = 0; d < map.counts.size(); ++d) actual[home_of[d]] += map.counts[d];
  uint64_t unplanned = map.row_of_choice.size() - map.rows();
  for (int e = 0; e < shape.experts; ++e) {
    if (instances.offsets[e + 1] - instances.offsets[e] < 2) continue;
    const uint64_t planned =
        std::accumulate(instances.quota.begin() + instances.offsets[e],
                        instances.quota.begin() + instances.offsets[e + 1], uint64_t{0});
    unplanned += std::max(planned, actual[e]) - std::min(planned, actual[e]);
  }
  return unplanned;
}

}  // namespace

Instances InstancesOf(const GroupShape& shape, const Placement& placement, int layer,
                      const MicroBatchPlan* micro_batch) {
  Instances instances;
  instances.offsets.reserve(shape.experts + 1);
  instances.offsets.push_back(0);
  auto replica = micro_batch == nullptr ? nullptr : micro_batch->replicas.data();
  const auto* replicas_end =
      micro_batch == nullptr ? nullptr : replica + micro_batch->replicas.size();
  auto quota = micro_batch == nullptr ? nullptr : micro_batch->quotas.data();
  const auto* quotas_end = micro_batch == nullptr ? nullptr : quota + micro_batch->quotas.size();
  for (int e = 0; e < shape.experts; ++e) {
    // All three lists ascend by (expert, rank).
    const size_t first = instances.rank.size();
    const auto add = [&](int rank, int slot) {
      instances.rank.push_back(rank);
      instances.slot.push_back(slot);
      instances.quota.push_back(0);
    };
    add(placement.RankOf(layer, e), placement.SlotOf(layer, e));
    for (; replica != replicas_end && replica->expert == e; ++replica) {
      add(replica->rank, shape.home_slots() + replica->slot);
    }
    for (; quota != quotas_end && quota->expert == e; ++quota) {
      for (size_t i = first; i < instances.rank.size(); ++i) {
        if (instances.rank[i] == quota->rank) instances.quota[i] = quota->tokens;
      }
    }
    instances.offsets.push_back(static_cast<int32_t>(instances.rank.size()));
  }
  return instances;
}

absl::StatusOr<DispatchMap> MapTokens(const GroupShape& shape, const Instances& instances,
                                      const LayerIds& ids) {
  const int64_t choices = ids.tokens * ids.top_k;
  const int64_t destinations = int64_t{1} * shape.ranks() * shape.physical_slots();
  const Executor cpu = Executor::Cpu();
  auto map_bytes = MapToInstancesWorkspaceBytes(Device::kCpu, choices, shape.experts);
  if (!map_bytes.ok()) return map_bytes.status();
  auto order_bytes = BuildDestinationOrderWorkspaceBytes(Device::kCpu, choices, destinations);
  if (!order_bytes.ok()) return order_bytes.status();
  const Scratch scratch(std::max(*map_bytes, *order_bytes));

  DispatchMap map;
  map.rank.resize(choices);
  map.slot.resize(choices);
  map.counts.resize(destinations);
  map.offsets.resize(destinations + 1);
  map.row_of_choice.resize(choices);
  map.choice_of_row.resize(choices);
  IdReport report;
  absl::Status s = MapToInstances(cpu, ids, instances.Table(), map.slot.data(), map.rank.data(),
                                  &report, scratch.workspace());
  if (!s.ok()) return s;

  std::vector<int32_t> destination(choices);
  for (int64_t i = 0; i < choices; ++i) {
    destination[i] = map.rank[i] < 0 ? -1 : map.rank[i] * shape.physical_slots() + map.slot[i];
  }
  s = BuildDestinationOrder(
      cpu, destination.data(), choices, destinations,
      {map.counts.data(), map.offsets.data(), map.row_of_choice.data(), map.choice_of_row.data()},
      &report, scratch.workspace());
  if (!s.ok()) return s;
  map.unplanned = CountUnplanned(shape, instances, map);
  return map;
}

}  // namespace relibra::agent

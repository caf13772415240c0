#include "kernels/instance_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"
#include "kernels/routing_element.h"

namespace relibra {
namespace {

absl::Status CheckSizes(int64_t choices, int64_t experts) {
  if (absl::Status status = CheckRange("choices", choices, 0, kMaxChoices); !status.ok()) {
    return status;
  }
  return CheckRange("experts", experts, 1, kMaxExperts);
}

absl::Status CheckTablePointers(const InstanceTable& table) {
  absl::Status status = CheckPointer("table.offsets", table.offsets, alignof(int32_t));
  if (status.ok()) status = CheckPointer("table.rank", table.rank, alignof(int32_t));
  if (status.ok()) status = CheckPointer("table.slot", table.slot, alignof(int32_t));
  if (status.ok()) status = CheckPointer("table.quota", table.quota, alignof(uint32_t));
  return status;
}

absl::Status CheckIdsArgument(const LayerIds& ids) {
  if (!IsValid(ids.type)) return absl::InvalidArgumentError("ids.type is not an IdType");
  absl::Status status = CheckRange("ids.top_k", ids.top_k, 1, kMaxTopK);
  if (status.ok()) status = CheckRange("ids.tokens", ids.tokens, 0, kMaxChoices / ids.top_k);
  // The upper end keeps indices within 63 bits.
  if (status.ok() && ids.token_stride != 0) {
    status = CheckRange("ids.token_stride", ids.token_stride, ids.top_k, 1 << 30);
  }
  if (status.ok() && ids.tokens > 0) {
    status = CheckPointer("ids.data", ids.data, SizeOf(ids.type));
  }
  return status;
}

// seen, next: scratch [experts].
void MapOnCpu(const LayerIds& ids, int64_t stride, const InstanceTable& table, int32_t* slot,
              int32_t* rank, IdReport* report, uint32_t* seen, uint32_t* next) {
  *report = IdReport{};
  std::fill(seen, seen + table.experts, 0);
  std::fill(next, next + table.experts, 0);
  for (int64_t t = 0; t < ids.tokens; ++t) {
    for (int64_t k = 0; k < ids.top_k; ++k) {
      const int64_t expert = ClassifyId(LoadId(ids.data, ids.type, t * stride + k), table.experts);
      if (expert >= 0) ++seen[expert];
    }
  }
  for (int64_t t = 0; t < ids.tokens; ++t) {
    for (int64_t k = 0; k < ids.top_k; ++k) {
      const int64_t choice = t * ids.top_k + k;
      const int64_t expert = ClassifyId(LoadId(ids.data, ids.type, t * stride + k), table.experts);
      slot[choice] = -1;
      rank[choice] = -1;
      if (expert >= 0) {
        const int32_t first = table.offsets[expert];
        const int32_t instance =
            first + InstanceOfOccurrence(next[expert]++, seen[expert], table.quota + first,
                                         table.offsets[expert + 1] - first);
        slot[choice] = table.slot[instance];
        rank[choice] = table.rank[instance];
      } else if (expert == kInvalidId) {
        if (report->invalid == 0) report->first_position = static_cast<uint64_t>(choice);
        ++report->invalid;
      }
    }
  }
}

}  // namespace

absl::Status CheckInstanceTable(const InstanceTable& table) {
  absl::Status status = CheckRange("table.experts", table.experts, 1, kMaxExperts);
  if (status.ok()) status = CheckTablePointers(table);
  if (!status.ok()) return status;
  if (table.offsets[0] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("table.offsets[0] is ", table.offsets[0], ", expected 0"));
  }
  for (int64_t e = 0; e < table.experts; ++e) {
    const int32_t begin = table.offsets[e];
    const int32_t end = table.offsets[e + 1];
    if (end <= begin) {
      return absl::InvalidArgumentError(absl::StrCat("table.offsets[", e + 1, "] is ", end,
                                                     ", expected more than ", begin,
                                                     ": every expert has a home"));
    }
    uint64_t planned = 0;
    for (int32_t i = begin; i < end; ++i) {
      if (table.rank[i] < 0 || table.slot[i] < 0) {
        return absl::InvalidArgumentError(absl::StrCat("table: instance ", i - begin, " of expert ",
                                                       e, " has rank ", table.rank[i], " and slot ",
                                                       table.slot[i], ", expected none below 0"));
      }
      planned += table.quota[i];
    }
    if (planned > 0xffffffffu) {
      return absl::InvalidArgumentError(absl::StrCat("table.quota of expert ", e, " sums to ",
                                                     planned, ", expected less than 2^32"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> MapToInstancesWorkspaceBytes(Device device, int64_t choices,
                                                    int64_t experts) {
  if (absl::Status status = CheckSizes(choices, experts); !status.ok()) return status;
  if (device == Device::kCpu) return 2 * sizeof(uint32_t) * static_cast<size_t>(experts);
  size_t bytes = 0;
  const int error = cuda::InstanceMapWorkspace(static_cast<int32_t>(choices),
                                               static_cast<int32_t>(experts), &bytes);
  if (error != 0) return StatusOfCuda(error);
  return bytes;
}

absl::Status MapToInstances(const Executor& executor, const LayerIds& ids,
                            const InstanceTable& table, int32_t* slot, int32_t* rank,
                            IdReport* report, Workspace workspace) {
  absl::Status status = CheckIdsArgument(ids);
  if (status.ok()) status = CheckRange("table.experts", table.experts, 1, kMaxExperts);
  if (status.ok()) status = CheckTablePointers(table);
  if (status.ok() && ids.tokens > 0) status = CheckPointer("slot", slot, alignof(int32_t));
  if (status.ok() && ids.tokens > 0) status = CheckPointer("rank", rank, alignof(int32_t));
  if (status.ok()) status = CheckPointer("report", report, alignof(IdReport));
  if (status.ok() && executor.device == Device::kCpu) status = CheckInstanceTable(table);
  if (!status.ok()) return status;

  const int64_t choices = ids.tokens * ids.top_k;
  absl::StatusOr<size_t> needed =
      MapToInstancesWorkspaceBytes(executor.device, choices, table.experts);
  if (!needed.ok()) return needed.status();
  if (status = CheckWorkspace(workspace, *needed); !status.ok()) return status;

  const int64_t stride = ids.token_stride == 0 ? ids.top_k : ids.token_stride;
  if (executor.device == Device::kCpu) {
    auto* seen = static_cast<uint32_t*>(workspace.data);
    MapOnCpu(ids, stride, table, slot, rank, report, seen, seen + table.experts);
    return CheckIds(*report, "ids", {ids.top_k}, table.experts);
  }
  return StatusOfCuda(cuda::MapToInstances(
      {
          .ids = ids.data,
          .type = ids.type,
          .choices = static_cast<int32_t>(choices),
          .top_k = static_cast<int32_t>(ids.top_k),
          .token_stride = stride,
          .experts = static_cast<int32_t>(table.experts),
          .offsets = table.offsets,
          .instance_rank = table.rank,
          .instance_slot = table.slot,
          .quota = table.quota,
          .slot = slot,
          .rank = rank,
          .report = {&report->invalid, &report->first_position},
      },
      workspace.data, executor.stream));
}

}  // namespace relibra

#include "kernels/load_histogram.h"

#include <limits>

#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"
#include "kernels/load_histogram_cpu.h"

namespace relibra {
namespace {

absl::Status Check(const RoutedIds& ids, int64_t experts, const uint32_t* counts,
                   const IdReport* report) {
  if (!IsValid(ids.type)) return absl::InvalidArgumentError("ids.type is not an IdType");
  absl::Status status = CheckRange("experts", experts, 1, kMaxExperts);
  if (status.ok()) status = CheckRange("ids.top_k", ids.top_k, 1, kMaxTopK);
  if (status.ok()) {
    status =
        CheckRange("ids.tokens", ids.tokens, 0, std::numeric_limits<uint32_t>::max() / ids.top_k);
  }
  // So that no index of ids or counts leaves 63 bits.
  if (status.ok()) status = CheckRange("ids.layers", ids.layers, 0, 1 << 20);
  if (status.ok() && ids.tokens > 0 && ids.layers > 0) {
    status = CheckPointer("ids.data", ids.data, SizeOf(ids.type));
  }
  if (status.ok() && ids.layers > 0) status = CheckPointer("counts", counts, sizeof(*counts));
  if (status.ok()) status = CheckPointer("report", report, alignof(IdReport));
  return status;
}

}  // namespace

absl::Status LoadHistogram(const Executor& executor, const RoutedIds& ids, int64_t experts,
                           uint32_t* counts, IdReport* report) {
  if (absl::Status status = Check(ids, experts, counts, report); !status.ok()) return status;
  if (executor.device == Device::kCpu) {
    LoadHistogramOnCpu(ids, experts, counts, report);
    return CheckIds(*report, "ids", {ids.layers, ids.top_k}, experts);
  }
  return StatusOfCuda(cuda::LoadHistogram(
      {
          .ids = ids.data,
          .type = ids.type,
          .tokens = ids.tokens,
          .layers = ids.layers,
          .top_k = static_cast<int32_t>(ids.top_k),
          .experts = static_cast<int32_t>(experts),
          .counts = counts,
          .report = {&report->invalid, &report->first_position},
      },
      executor.stream));
}

}  // namespace relibra

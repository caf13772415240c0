#include "kernels/destination_order.h"

#include <algorithm>

#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"
#include "kernels/routing_element.h"

namespace relibra {
namespace {

constexpr int64_t kMaxDestinations = int64_t{1} << 30;

absl::Status CheckSizes(int64_t choices, int64_t destinations) {
  if (absl::Status status = CheckRange("choices", choices, 0, kMaxChoices); !status.ok()) {
    return status;
  }
  return CheckRange("destinations", destinations, 1, kMaxDestinations);
}

absl::Status CheckPointers(const int32_t* destination, int64_t choices,
                           const DestinationOrder& order, const IdReport* report) {
  absl::Status status = CheckPointer("order.counts", order.counts, alignof(int64_t));
  if (status.ok()) status = CheckPointer("order.offsets", order.offsets, alignof(int64_t));
  if (status.ok()) status = CheckPointer("report", report, alignof(IdReport));
  if (status.ok() && choices > 0) {
    status = CheckPointer("destination", destination, alignof(int32_t));
  }
  if (status.ok() && choices > 0) {
    status = CheckPointer("order.row_of_choice", order.row_of_choice, alignof(int32_t));
  }
  if (status.ok() && order.choice_of_row != nullptr) {
    status = CheckPointer("order.choice_of_row", order.choice_of_row, alignof(int32_t));
  }
  return status;
}

// next: scratch [destinations].
void OrderOnCpu(const int32_t* destination, int64_t choices, int64_t destinations,
                const DestinationOrder& order, IdReport* report, int32_t* next) {
  *report = IdReport{};
  std::fill(order.counts, order.counts + destinations, 0);
  for (int64_t c = 0; c < choices; ++c) {
    const int64_t d = ClassifyId(destination[c], destinations);
    if (d >= 0) {
      ++order.counts[d];
    } else if (d == kInvalidId) {
      if (report->invalid == 0) report->first_position = static_cast<uint64_t>(c);
      ++report->invalid;
    }
  }
  order.offsets[0] = 0;
  for (int64_t d = 0; d < destinations; ++d) {
    next[d] = static_cast<int32_t>(order.offsets[d]);
    order.offsets[d + 1] = order.offsets[d] + order.counts[d];
  }
  for (int64_t c = 0; c < choices; ++c) {
    const int64_t d = ClassifyId(destination[c], destinations);
    const int32_t row = d >= 0 ? next[d]++ : -1;
    order.row_of_choice[c] = row;
    if (row >= 0 && order.choice_of_row != nullptr) {
      order.choice_of_row[row] = static_cast<int32_t>(c);
    }
  }
  if (order.choice_of_row != nullptr) {
    std::fill(order.choice_of_row + order.offsets[destinations], order.choice_of_row + choices, -1);
  }
}

}  // namespace

absl::StatusOr<size_t> BuildDestinationOrderWorkspaceBytes(Device device, int64_t choices,
                                                           int64_t destinations) {
  if (absl::Status status = CheckSizes(choices, destinations); !status.ok()) return status;
  if (device == Device::kCpu) return sizeof(int32_t) * static_cast<size_t>(destinations);
  size_t bytes = 0;
  const int error = cuda::DestinationOrderWorkspace(static_cast<int32_t>(choices),
                                                    static_cast<int32_t>(destinations), &bytes);
  if (error != 0) return StatusOfCuda(error);
  return bytes;
}

absl::Status BuildDestinationOrder(const Executor& executor, const int32_t* destination,
                                   int64_t choices, int64_t destinations,
                                   const DestinationOrder& order, IdReport* report,
                                   Workspace workspace) {
  absl::StatusOr<size_t> needed =
      BuildDestinationOrderWorkspaceBytes(executor.device, choices, destinations);
  if (!needed.ok()) return needed.status();
  absl::Status status = CheckPointers(destination, choices, order, report);
  if (status.ok()) status = CheckWorkspace(workspace, *needed);
  if (!status.ok()) return status;
  if (executor.device == Device::kCpu) {
    OrderOnCpu(destination, choices, destinations, order, report,
               static_cast<int32_t*>(workspace.data));
    return CheckIds(*report, "destination", {}, destinations);
  }
  return StatusOfCuda(cuda::BuildDestinationOrder(
      {
          .destination = destination,
          .choices = static_cast<int32_t>(choices),
          .destinations = static_cast<int32_t>(destinations),
          .counts = order.counts,
          .offsets = order.offsets,
          .row_of_choice = order.row_of_choice,
          .choice_of_row = order.choice_of_row,
          .report = {&report->invalid, &report->first_position},
      },
      workspace.data, executor.stream));
}

}  // namespace relibra

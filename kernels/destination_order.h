// Orders the (token, choice) pairs of a micro-batch by destination, for an all-to-all.
//
// A destination is whatever the caller numbers 0..D-1: ranks, when rows are only grouped by rank;
// or physical slots numbered rank by rank (rank * slots a rank + slot), when they shall also be
// grouped by expert within each rank. Then the counts of a rank's slots add up to the rank's count.
#ifndef RELIBRA_KERNELS_DESTINATION_ORDER_H_
#define RELIBRA_KERNELS_DESTINATION_ORDER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/executor.h"
#include "kernels/id_report.h"
#include "kernels/routing_limits.h"

namespace relibra {

// The order's arrays, all overwritten. With N the number of routed choices (destination >= 0):
struct DestinationOrder {
  int64_t* counts = nullptr;         // [D], rows for each destination
  int64_t* offsets = nullptr;        // [D + 1], first row of each; offsets[D] == N
  int32_t* row_of_choice = nullptr;  // [tokens * top_k], row of (token, choice) in 0..N-1; -1 where
                                     // it is not routed
  int32_t* choice_of_row = nullptr;  // [tokens * top_k], the inverse, token * top_k + choice; -1
                                     // from N on. May be null: then it is not written
};

// Scratch that BuildDestinationOrder needs. UNAVAILABLE without a GPU when device is kCuda.
absl::StatusOr<size_t> BuildDestinationOrderWorkspaceBytes(Device device, int64_t choices,
                                                           int64_t destinations);

// destination: [choices] (= tokens x top_k, flattened), below 0 means not routed; one >= D is left
// out too, and reported in *report.
// Rows of one destination keep the order of their choices (a stable sort), so the order is a
// function of the input alone.
// INVALID_ARGUMENT: null pointers, choices >= 2^31, D outside 1..2^30, a workspace too small; on
// the CPU also report->invalid not 0 (outputs are complete all the same).
absl::Status BuildDestinationOrder(const Executor& executor, const int32_t* destination,
                                   int64_t choices, int64_t destinations,
                                   const DestinationOrder& order, IdReport* report,
                                   Workspace workspace);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_DESTINATION_ORDER_H_

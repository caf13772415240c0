// What a kernel found wrong with the ids it was given. A kernel on a stream cannot return it, so it
// leaves it in memory; the caller reads it once the stream is done.
//
//   IdReport* report = …;                              // device memory
//   LoadHistogram(Executor::Cuda(stream), …, report);
//   IdReport found = <copy of *report after the stream is done>;
//   absl::Status status = CheckIds(found, "routed_experts", {layers, top_k}, experts);
#ifndef RELIBRA_KERNELS_ID_REPORT_H_
#define RELIBRA_KERNELS_ID_REPORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace relibra {

// Written (not added to) by each call that takes one. Aligned to 8 bytes.
struct IdReport {
  uint64_t invalid = 0;                    // ids that are >= the limit; they were left out
  uint64_t first_position = ~uint64_t{0};  // the first such id, an index into the flattened
                                           // [tokens, …] array; all ones when there is none
};

// OK when report.invalid is 0, else INVALID_ARGUMENT naming the array, the index of the first
// invalid id, how many there are and the limit.
//   row_shape: the array's dimensions after tokens, e.g. {layers, top_k}; the index is printed as
//   name[token][layer][choice].
absl::Status CheckIds(const IdReport& report, absl::string_view name,
                      absl::Span<const int64_t> row_shape, int64_t limit);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ID_REPORT_H_

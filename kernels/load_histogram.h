// Counts how many (token, choice) pairs go to each expert of each layer.
//
//   std::vector<uint32_t> counts(layers * experts);
//   IdReport report;
//   absl::Status status = LoadHistogram(
//       Executor::Cpu(),
//       {.data = ids, .type = IdType::kU8, .tokens = tokens, .layers = layers, .top_k = 8},
//       experts, counts.data(), &report);
#ifndef RELIBRA_KERNELS_LOAD_HISTOGRAM_H_
#define RELIBRA_KERNELS_LOAD_HISTOGRAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/executor.h"
#include "kernels/id_report.h"
#include "kernels/routing_limits.h"

namespace relibra {

// Routed ids [tokens, layers, top_k], aligned to their own size.
struct RoutedIds {
  const void* data = nullptr;
  IdType type = IdType::kI32;
  int64_t tokens = 0;
  int64_t layers = 1;
  int64_t top_k = 1;
};

// counts: [layers, experts], overwritten. An id below 0 is not counted; neither is one >= experts,
// which is reported in *report instead.
// INVALID_ARGUMENT: a null pointer, a negative dimension, experts outside 1..kMaxExperts, top_k
// outside 1..kMaxTopK, or tokens x top_k >= 2^32 (a count might not fit). On the CPU also when
// report->invalid is not 0; counts are complete all the same.
// CPU: O(ids + layers x experts), over 1 G ids/s a core for 8-bit ids. CUDA: one read of the ids;
// counts are gathered in shared memory and added up with integer atomics, so the order of blocks
// does not show.
absl::Status LoadHistogram(const Executor& executor, const RoutedIds& ids, int64_t experts,
                           uint32_t* counts, IdReport* report);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_LOAD_HISTOGRAM_H_

#include "planner_service/core/expert_totals.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/core/multiversion.h"

namespace relibra {
namespace {

// sums[e] += row[e]; a sum that wraps leaves a bit in wrapped[e].
RELIBRA_MULTIVERSION void AddRow(const uint32_t* row, int n, uint32_t* sums, uint32_t* wrapped) {
  for (int e = 0; e < n; ++e) {
    const uint32_t sum = sums[e] + row[e];
    wrapped[e] |= sum < row[e] ? 1 : 0;
    sums[e] = sum;
  }
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> SumSources(const Loads& loads, int layer) {
  const LoadShape& shape = loads.shape();
  std::vector<uint32_t> totals(size_t{1} * shape.micro_batches * shape.experts);
  std::vector<uint32_t> wrapped(shape.experts);
  for (int m = 0; m < shape.micro_batches; ++m) {
    absl::Span<const uint32_t> matrix = loads.At(m, layer);
    uint32_t* sums = &totals[size_t{1} * m * shape.experts];
    for (int s = 0; s < shape.sources; ++s) {
      AddRow(matrix.data() + size_t{1} * s * shape.experts, shape.experts, sums, wrapped.data());
    }
    for (int e = 0; e < shape.experts; ++e) {
      if (wrapped[e] == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ", micro-batch ", m,
                                                     ", expert ", e,
                                                     ": load over all source ranks does not fit "
                                                     "into 32 bits"));
    }
  }
  return totals;
}

}  // namespace relibra

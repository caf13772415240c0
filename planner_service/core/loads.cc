#include "planner_service/core/loads.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

// The number of counts of a shape, or an error when a dimension is empty or the product too large.
absl::StatusOr<size_t> CountsOf(const LoadShape& shape) {
  size_t counts = 1;
  for (auto [name, size] : {std::pair{"micro_batches", shape.micro_batches},
                            {"layers", shape.layers},
                            {"sources", shape.sources},
                            {"experts", shape.experts}}) {
    if (size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("loads: ", name, ": expected at least 1, got ", size));
    }
    constexpr size_t kMost = std::numeric_limits<ptrdiff_t>::max() / sizeof(uint32_t);
    if (counts > kMost / size) {
      return absl::ResourceExhaustedError("loads: more counts than memory can address");
    }
    counts *= size;
  }
  return counts;
}

}  // namespace

absl::StatusOr<Loads> Loads::Create(const LoadShape& shape) {
  absl::StatusOr<size_t> counts = CountsOf(shape);
  if (!counts.ok()) return counts.status();
  return Loads(shape, std::vector<uint32_t>(*counts));
}

absl::StatusOr<Loads> Loads::FromCounts(const LoadShape& shape, std::vector<uint32_t> counts) {
  absl::StatusOr<size_t> expected = CountsOf(shape);
  if (!expected.ok()) return expected.status();
  if (counts.size() != *expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("loads: expected ", *expected, " counts, got ", counts.size()));
  }
  return Loads(shape, std::move(counts));
}

absl::Status Loads::CheckSums() const {
  std::vector<uint64_t> sums(shape_.experts);
  for (int m = 0; m < shape_.micro_batches; ++m) {
    for (int l = 0; l < shape_.layers; ++l) {
      absl::Span<const uint32_t> matrix = At(m, l);
      std::fill(sums.begin(), sums.end(), 0);
      for (int s = 0; s < shape_.sources; ++s) {
        const uint32_t* row = matrix.data() + size_t{1} * s * shape_.experts;
        for (int e = 0; e < shape_.experts; ++e) sums[e] += row[e];
      }
      for (int e = 0; e < shape_.experts; ++e) {
        if (sums[e] > std::numeric_limits<uint32_t>::max()) {
          return absl::InvalidArgumentError(
              absl::StrCat("layer ", l, ", micro-batch ", m, ", expert ", e, ": load ", sums[e],
                           " over all source ranks does not fit into 32 bits"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace relibra

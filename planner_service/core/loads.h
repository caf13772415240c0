// The expert loads of one step of one EP group.
//
//   absl::StatusOr<Loads> loads = Loads::Create({.micro_batches = 16, .layers = 48, .sources = 64,
//                                                .experts = 128});
//   loads->Mutable(m, l)[s * 128 + e] += 1;
#ifndef RELIBRA_PLANNER_SERVICE_CORE_LOADS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_LOADS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace relibra {

struct LoadShape {
  int micro_batches = 0;  // M
  int layers = 0;         // L, MoE layers only
  int sources = 0;        // S, source ranks
  int experts = 0;        // E

  friend bool operator==(const LoadShape&, const LoadShape&) = default;
};

// loads[m][l][s][e]: (token, choice) pairs that source rank s sends to expert e in layer l of
// micro-batch m. 32-bit counts, 64-bit sums. A value; threads may read one together.
class Loads {
 public:
  // All counts zero. INVALID_ARGUMENT unless every dimension is >= 1; RESOURCE_EXHAUSTED when the
  // array would not fit into memory's address range.
  static absl::StatusOr<Loads> Create(const LoadShape& shape);

  // Takes counts in [m][l][s][e] order. INVALID_ARGUMENT when their number is not the shape's.
  static absl::StatusOr<Loads> FromCounts(const LoadShape& shape, std::vector<uint32_t> counts);

  const LoadShape& shape() const { return shape_; }

  // [S, E] of one (micro-batch, layer).
  absl::Span<const uint32_t> At(int micro_batch, int layer) const {
    return absl::MakeConstSpan(counts_).subspan(Offset(micro_batch, layer), MatrixSize());
  }
  absl::Span<uint32_t> Mutable(int micro_batch, int layer) {
    return absl::MakeSpan(counts_).subspan(Offset(micro_batch, layer), MatrixSize());
  }

  // All counts, [m][l][s][e].
  absl::Span<const uint32_t> counts() const { return counts_; }

  // OK when the load of every expert, summed over source ranks, fits into 32 bits in every
  // (micro-batch, layer), as plans need it to; else INVALID_ARGUMENT naming layer, micro-batch,
  // expert.
  absl::Status CheckSums() const;

 private:
  Loads(const LoadShape& shape, std::vector<uint32_t> counts)
      : shape_(shape), counts_(std::move(counts)) {}

  size_t MatrixSize() const { return size_t{1} * shape_.sources * shape_.experts; }
  size_t Offset(int micro_batch, int layer) const {
    return (size_t{1} * micro_batch * shape_.layers + layer) * MatrixSize();
  }

  LoadShape shape_;
  std::vector<uint32_t> counts_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_LOADS_H_

// Exchanges vectors between sets so that the sets' sums come out alike.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_SWAP_SEARCH_H_
#define RELIBRA_PLANNER_SERVICE_CORE_SWAP_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "planner_service/core/planner.h"

namespace relibra {

// U vectors of d numbers, each in one of M sets; swaps two of different sets as long as the sum
// over sets of |sum of the set's vectors|^2 falls.
//
// With the inner products G known, so is what a swap gains: for q in set a and r in b, half the
// change is S[a][r] - S[b][r] + S[b][q] - S[a][q] + G[q][q] + G[r][r] - 2 G[q][r], where S[m][q] is
// the inner product of q and the sum of set m. A swap updates two rows of S. All in integers: the
// result does not depend on the width of SIMD or the number of threads.
class SwapSearch {
 public:
  // vectors: [U][d]; scaled to 16 bits by one common factor. O(U^2 d), by parallel_for.
  SwapSearch(absl::Span<const double> vectors, size_t num_vectors, ParallelFor parallel_for);

  // Passes over all vectors, for each the best swap there is, until a pass finds none; at most
  // `passes`. set_of: [U], changed. may_swap(q, r): whether the caller permits it now; done(q, r):
  // called after each swap. Returns the number of swaps. O(U) a vector looked at and a swap made.
  size_t Run(int num_sets, int passes, absl::Span<uint32_t> set_of,
             absl::FunctionRef<bool(size_t, size_t)> may_swap,
             absl::FunctionRef<void(size_t, size_t)> done);

 private:
  void Start(int num_sets, absl::Span<const uint32_t> set_of);
  void Apply(size_t q, size_t r, absl::Span<uint32_t> set_of);

  const int32_t* Row(size_t q) const { return &gram_[q * size_]; }

  const size_t size_;                       // U
  std::vector<int32_t> gram_;               // [U][U]
  std::vector<std::vector<int64_t>> sums_;  // S: [M][U]
  std::vector<int64_t> base_;               // [U], G[r][r] - S[set of r][r]
  std::vector<int64_t> norms_;              // [U], G[r][r]
  std::vector<int64_t> gains_;              // [U], of the vector at hand
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_SWAP_SEARCH_H_

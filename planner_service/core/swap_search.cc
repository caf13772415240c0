// Compiled with -ffp-contract=off: the scaling rounds the same on every machine.
#include "planner_service/core/swap_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace relibra {
namespace {

// Every inner product is at most the square of this (Cauchy and Schwarz), so 32 bits hold it, and
// so do the partial sums of any order of summation.
constexpr double kLongest = 32767;

// Pads to whole SIMD registers.
constexpr size_t kStep = 32;

std::vector<int16_t> Scaled(absl::Span<const double> vectors, size_t num_vectors, size_t stride) {
  const size_t dims = num_vectors == 0 ? 0 : vectors.size() / num_vectors;
  double longest = 0;
  for (size_t q = 0; q < num_vectors; ++q) {
    double square = 0;
    for (size_t i = 0; i < dims; ++i) square += vectors[q * dims + i] * vectors[q * dims + i];
    longest = std::max(longest, square);
  }
  // Rounding can lengthen a vector by half a unit in every dimension.
  const double room = std::max(1.0, kLongest - 0.5 * std::sqrt(static_cast<double>(dims)) - 1);
  const double scale = longest > 0 ? room / std::sqrt(longest) : 0;
  std::vector<int16_t> scaled(num_vectors * stride);
  for (size_t q = 0; q < num_vectors; ++q) {
    for (size_t i = 0; i < dims; ++i) {
      scaled[q * stride + i] = static_cast<int16_t>(std::lround(vectors[q * dims + i] * scale));
    }
  }
  return scaled;
}

int32_t InnerProduct(const int16_t* a, const int16_t* b, size_t size) {
  int32_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum += int32_t{a[i]} * b[i];
  return sum;
}

}  // namespace

SwapSearch::SwapSearch(absl::Span<const double> vectors, size_t num_vectors,
                       ParallelFor parallel_for)
    : size_(num_vectors),
      gram_(num_vectors * num_vectors),
      base_(num_vectors),
      norms_(num_vectors),
      gains_(num_vectors) {
  const size_t dims = num_vectors == 0 ? 0 : vectors.size() / num_vectors;
  const size_t stride = (dims + kStep - 1) / kStep * kStep;
  const std::vector<int16_t> scaled = Scaled(vectors, num_vectors, stride);
  // Tiles, so that both sides of a tile stay in the cache; the lower triangle is mirrored.
  constexpr size_t kTile = 32;
  const int tiles = static_cast<int>((size_ + kTile - 1) / kTile);
  parallel_for(tiles, [&](int tile) {
    const size_t begin = tile * kTile;
    const size_t end = std::min(size_, begin + kTile);
    for (size_t other = 0; other < end; other += kTile) {
      for (size_t q = begin; q < end; ++q) {
        const size_t last = std::min({size_, other + kTile, q + 1});
        for (size_t r = other; r < last; ++r) {
          const int32_t product = InnerProduct(&scaled[q * stride], &scaled[r * stride], stride);
          gram_[q * size_ + r] = product;
          gram_[r * size_ + q] = product;
        }
      }
    }
  });
  for (size_t q = 0; q < size_; ++q) norms_[q] = Row(q)[q];
}

void SwapSearch::Start(int num_sets, absl::Span<const uint32_t> set_of) {
  sums_.assign(num_sets, std::vector<int64_t>(size_));
  for (size_t q = 0; q < size_; ++q) {
    int64_t* sum = sums_[set_of[q]].data();
    const int32_t* row = Row(q);
    for (size_t r = 0; r < size_; ++r) sum[r] += row[r];
  }
  for (size_t r = 0; r < size_; ++r) base_[r] = norms_[r] - sums_[set_of[r]][r];
}

void SwapSearch::Apply(size_t q, size_t r, absl::Span<uint32_t> set_of) {
  int64_t* a = sums_[set_of[q]].data();
  int64_t* b = sums_[set_of[r]].data();
  const int32_t* of_q = Row(q);
  const int32_t* of_r = Row(r);
  for (size_t x = 0; x < size_; ++x) {
    const int64_t difference = int64_t{of_r[x]} - of_q[x];
    a[x] += difference;
    b[x] -= difference;
  }
  std::swap(set_of[q], set_of[r]);
  for (size_t x = 0; x < size_; ++x) base_[x] = norms_[x] - sums_[set_of[x]][x];
}

size_t SwapSearch::Run(int num_sets, int passes, absl::Span<uint32_t> set_of,
                       absl::FunctionRef<bool(size_t, size_t)> may_swap,
                       absl::FunctionRef<void(size_t, size_t)> done) {
  Start(num_sets, set_of);
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;
  std::vector<int64_t> of_set(num_sets);
  size_t swaps = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const size_t before = swaps;
    for (size_t q = 0; q < size_; ++q) {
      const uint32_t a = set_of[q];
      for (int m = 0; m < num_sets; ++m) of_set[m] = sums_[m][q] + base_[q];
      of_set[a] = kNever;
      const int64_t* sum = sums_[a].data();
      const int32_t* row = Row(q);
      for (size_t r = 0; r < size_; ++r) {
        gains_[r] = sum[r] + base_[r] - 2 * int64_t{row[r]} + of_set[set_of[r]];
      }
      int64_t best = 0;
      size_t partner = size_;
      for (size_t r = 0; r < size_; ++r) {
        if (gains_[r] < best && may_swap(q, r)) {
          best = gains_[r];
          partner = r;
        }
      }
      if (partner == size_) continue;
      Apply(q, partner, set_of);
      done(q, partner);
      ++swaps;
    }
    if (swaps == before) break;
  }
  return swaps;
}

}  // namespace relibra

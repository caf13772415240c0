// Stands in for CUB's radix sort: stable, by bits [begin_bit, end_bit) of the key.
#ifndef RELIBRA_TESTS_KERNELS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_
#define RELIBRA_TESTS_KERNELS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* scratch, size_t& scratch_bytes, const Key* keys_in,
                               Key* keys_out, const Value* values_in, Value* values_out, int count,
                               int begin_bit, int end_bit, cudaStream_t /*stream*/) {
    const size_t needed = static_cast<size_t>(count) + 1;
    if (scratch == nullptr) {
      scratch_bytes = needed;
      return cudaSuccess;
    }
    if (scratch_bytes < needed) return cudaErrorInvalidValue;
    memset(scratch, 0xa5, needed);
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    const auto digits = [&](int i) {
      return (uint64_t{keys_in[i]} & ((uint64_t{1} << end_bit) - 1)) >> begin_bit;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return digits(a) < digits(b); });
    for (int i = 0; i < count; ++i) {
      keys_out[i] = keys_in[order[static_cast<size_t>(i)]];
      values_out[i] = values_in[order[static_cast<size_t>(i)]];
    }
    return cudaSuccess;
  }
};

}  // namespace cub

#endif  // RELIBRA_TESTS_KERNELS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_

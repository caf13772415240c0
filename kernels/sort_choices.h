// Sorts the choices of a micro-batch by a small key (expert or destination), stably: choices of one
// key keep their order, and the sorted array shows each choice's number among those of its key.
// Included by .cu files only.
#ifndef RELIBRA_KERNELS_SORT_CHOICES_H_
#define RELIBRA_KERNELS_SORT_CHOICES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda_launch.h"

namespace relibra::cuda {

// Each piece of a workspace starts on its own 256 bytes.
constexpr size_t RoundToPiece(size_t bytes) { return (bytes + 255) / 256 * 256; }

// The memory of one sort, cut from a workspace.
struct ChoiceSort {
  int32_t choices;
  int end_bit;           // keys are below 2^end_bit
  size_t array_bytes;    // of each of the four arrays
  size_t scratch_bytes;  // CUB's
  char* memory;

  size_t bytes() const { return 4 * array_bytes + scratch_bytes; }
  // Filled by the caller before Run: [choices] each, position i being i.
  uint32_t* keys() const { return reinterpret_cast<uint32_t*>(memory); }
  int32_t* positions() const { return reinterpret_cast<int32_t*>(memory + array_bytes); }
  // Filled by Run.
  uint32_t* sorted_keys() const { return reinterpret_cast<uint32_t*>(memory + 2 * array_bytes); }
  int32_t* sorted_positions() const { return reinterpret_cast<int32_t*>(memory + 3 * array_bytes); }

  // keys: 0..max_key. memory may be null to learn bytes().
  static cudaError_t Plan(int32_t choices, int32_t max_key, void* memory, ChoiceSort* sort) {
    sort->choices = choices;
    sort->end_bit = std::bit_width(static_cast<uint32_t>(max_key));
    sort->array_bytes = RoundToPiece(static_cast<size_t>(choices) * sizeof(uint32_t));
    sort->memory = static_cast<char*>(memory);
    sort->scratch_bytes = 0;
    int device = 0;  // asked for only to learn why there is none: CUB says "invalid device" then
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    size_t scratch = 0;
    error = cub::DeviceRadixSort::SortPairs(
        nullptr, scratch, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
        static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr), choices, 0,
        sort->end_bit, nullptr);
    sort->scratch_bytes = RoundToPiece(scratch);
    return error;
  }

  cudaError_t Run(CUstream_st* stream) const {
    size_t scratch = scratch_bytes;
    return cub::DeviceRadixSort::SortPairs(
        memory + 4 * array_bytes, scratch, static_cast<const uint32_t*>(keys()), sorted_keys(),
        static_cast<const int32_t*>(positions()), sorted_positions(), choices, 0, end_bit, stream);
  }
};

}  // namespace relibra::cuda

#endif  // RELIBRA_KERNELS_SORT_CHOICES_H_

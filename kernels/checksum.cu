#include <algorithm>

#include "kernels/checksum_element.h"
#include "kernels/cuda_launch.h"

namespace relibra::cuda {
namespace {

// Enough to fill any GPU; each thread takes many words, each block adds to the sum once.
constexpr int64_t kMaxBlocks = 2048;

struct alignas(16) WordPair {
  uint64_t low;
  uint64_t high;
};

__device__ __forceinline__ void AddToChecksum(uint64_t sum, uint64_t* checksum) {
  __shared__ unsigned long long warp_sums[kBlockThreads / kWarpThreads];
  unsigned long long partial = sum;
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    partial += __shfl_down_sync(0xffffffffu, partial, step);
  }
  if (threadIdx.x % kWarpThreads == 0) warp_sums[threadIdx.x / kWarpThreads] = partial;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned long long total = 0;
  for (const unsigned long long warp_sum : warp_sums) total += warp_sum;
  atomicAdd(reinterpret_cast<unsigned long long*>(checksum), total);
}

// aligned: data is a multiple of 16, and is read 16 bytes at a time but for its end.
template <bool aligned>
__global__ void __launch_bounds__(kBlockThreads)
    ChecksumKernel(const uint8_t* data, int64_t bytes, uint64_t* checksum) {
  const int64_t thread = ThreadItem();
  const int64_t threads = int64_t{gridDim.x} * kBlockThreads;
  const int64_t words = bytes / 8 + (bytes % 8 != 0);
  const int64_t pairs = aligned ? bytes / 16 : 0;
  uint64_t sum = thread == 0 ? MixLength(bytes) : 0;
  for (int64_t p = thread; p < pairs; p += threads) {
    const WordPair pair = reinterpret_cast<const WordPair*>(data)[p];
    sum += MixWord(pair.low, static_cast<uint64_t>(2 * p));
    sum += MixWord(pair.high, static_cast<uint64_t>(2 * p + 1));
  }
  for (int64_t w = 2 * pairs + thread; w < words; w += threads) {
    sum += MixWord(LoadWordBytewise(data, bytes, w), static_cast<uint64_t>(w));
  }
  AddToChecksum(sum, checksum);
}

}  // namespace

int Checksum(const uint8_t* data, int64_t bytes, uint64_t* checksum, CUstream_st* stream) {
  const cudaError_t error = cudaMemsetAsync(checksum, 0, sizeof(*checksum), stream);
  if (error != cudaSuccess) return error;
  const int64_t pairs = bytes / 16 + 1;  // at least one block: the length counts too
  const int64_t blocks = std::min(CeilDivide(pairs, kBlockThreads), kMaxBlocks);
  const bool aligned = reinterpret_cast<uintptr_t>(data) % alignof(WordPair) == 0;
  return Launch(aligned ? ChecksumKernel<true> : ChecksumKernel<false>, blocks, dim3(kBlockThreads),
                stream, data, bytes, checksum);
}

}  // namespace relibra::cuda

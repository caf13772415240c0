// How every kernel is launched, and what kernels share on the device. Included by .cu files only.
#ifndef RELIBRA_KERNELS_CUDA_LAUNCH_H_
#define RELIBRA_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda_launchers.h"

namespace relibra::cuda {

// Threads of every block; also the kernels' __launch_bounds__.
inline constexpr int kBlockThreads = 256;
inline constexpr int kWarpThreads = 32;

constexpr int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Enqueues kernel<<<blocks, block>>>(args...). No blocks, no launch: CUDA takes an empty grid for
// an error. A grid's x dimension is the only one that takes 2^31 - 1 blocks, so all grids are flat.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), int64_t blocks, dim3 block, CUstream_st* stream,
                   const Args&... args) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// One thread an item, for `items` items.
template <typename... Params, typename... Args>
cudaError_t LaunchOverItems(void (*kernel)(Params...), int64_t items, CUstream_st* stream,
                            const Args&... args) {
  return Launch(kernel, CeilDivide(items, kBlockThreads), dim3(kBlockThreads), stream, args...);
}

// The item of this thread; may be past the last one.
__device__ __forceinline__ int64_t ThreadItem() {
  return int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
}

// Sets both words of the report to "none found".
inline cudaError_t ClearReport(const IdReportWords& report, CUstream_st* stream) {
  const cudaError_t error = cudaMemsetAsync(report.invalid, 0, sizeof(uint64_t), stream);
  if (error != cudaSuccess) return error;
  return cudaMemsetAsync(report.first_position, 0xff, sizeof(uint64_t), stream);
}

// Sums and minima commute: the report does not depend on the order of threads.
__device__ __forceinline__ void ReportInvalid(const IdReportWords& report, int64_t position) {
  atomicAdd(reinterpret_cast<unsigned long long*>(report.invalid), 1ull);
  atomicMin(reinterpret_cast<unsigned long long*>(report.first_position),
            static_cast<unsigned long long>(position));
}

}  // namespace relibra::cuda

#endif  // RELIBRA_KERNELS_CUDA_LAUNCH_H_

// Stands in for CUDA's header when the .cu files are compiled as C++, so that the kernels and their
// launchers run, thread by thread, on a machine without a GPU. Covers what kernels/ uses. Streams
// are ignored: every call is done when it returns.
//
// What it shows: wrong indices, grids and block shapes, missing launches, work left out or done
// twice, dependence on the order of blocks and threads, a barrier or shuffle that not all threads
// reach. What it cannot show: data races between threads, misaligned vector accesses (the C++ side
// of float_group.h asserts those), resources, speed.
#ifndef RELIBRA_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define RELIBRA_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
#define __global__
#define __device__
#define __shared__ static  // blocks run one after another; what one leaves, the next one finds
#define __forceinline__ inline
#define __launch_bounds__(...)

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
};

struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, as CUDA's is
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

// Of the thread that runs now.
inline dim3 gridDim;
inline dim3 blockDim;
inline dim3 blockIdx;
inline dim3 threadIdx;

namespace cuda_emulation {

// Runs `thread` once for every thread of the grid. Threads that wait for others are suspended. The
// order of blocks and threads turns round with every call, so that a result that depends on it does
// not stay the same.
void RunGrid(const dim3& grid, const dim3& block, const std::function<void()>& thread);

void WaitForBlock();
// Gives each thread of a warp the value that thread `delta` further on brought.
uint64_t ShuffleDown(uint64_t value, unsigned delta);

}  // namespace cuda_emulation

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               const Args&... args) {
  const dim3& grid = config->gridDim;
  const dim3& block = config->blockDim;
  const bool valid = grid.x > 0 && grid.x <= 0x7fffffffu && grid.y == 1 && grid.z == 1 &&
                     block.x > 0 && block.y > 0 && block.z == 1 && block.x * block.y <= 1024;
  if (!valid) return cudaErrorInvalidConfiguration;
  cuda_emulation::RunGrid(grid, block, [&] { kernel(args...); });
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t /*stream*/) {
  memset(target, value, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorName(cudaError_t /*error*/) { return "emulated error"; }
inline const char* cudaGetErrorString(cudaError_t /*error*/) { return "see the number"; }

template <typename T>
T atomicAdd(T* target, T value) {
  const T before = *target;
  *target += value;
  return before;
}

template <typename T>
T atomicMin(T* target, T value) {
  const T before = *target;
  *target = std::min(before, value);
  return before;
}

inline void __syncthreads() { cuda_emulation::WaitForBlock(); }

template <typename T>
T __shfl_down_sync(unsigned /*mask*/, T value, int delta) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  bits = cuda_emulation::ShuffleDown(bits, static_cast<unsigned>(delta));
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// NOLINTEND(bugprone-reserved-identifier)

using std::min;

#endif  // RELIBRA_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

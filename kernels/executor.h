// Where a kernel runs: on the calling thread, or on a CUDA stream.
//
//   absl::Status status = LoadHistogram(Executor::Cpu(), ids, …);    // done when it returns
//   status = LoadHistogram(Executor::Cuda(stream), device_ids, …);   // done when the stream is
//
// What holds of every call of this folder:
// - All pointers are memory that the executor can reach: host memory for kCpu, device memory of the
//   stream's device (or managed, or mapped pinned memory) for kCuda. Arrays are dense and row-major
//   unless a stride is given. Nothing is kept after the call; the caller owns everything.
// - kCpu: runs on the calling thread and is done on return. kCuda: only enqueues on the stream, in
//   order; it never allocates, never synchronises and never waits, so it can be captured in a CUDA
//   graph. The calling thread's current device must be the stream's.
// - Both give the same bits for the same input, whatever the launch shape: per-element logic is one
//   function that both compile (without fused multiply-add), and sums have a fixed order.
// - Thread-safe, as long as calls that run at the same time write to different memory.
// - Scratch memory is given by the caller; `…WorkspaceBytes` says how much. A workspace may be
//   reused as soon as the work that uses it is done (the next call on the same stream is fine).
// - INVALID_ARGUMENT names the argument at fault, before anything is run. UNAVAILABLE "no GPU: …":
//   kCuda was asked for, but the build has no CUDA or the machine no driver or device. INTERNAL
//   carries any other CUDA error by name; errors of earlier work on the stream can surface here.
// - Zero tokens, zero rows and zero bytes are valid: outputs of fixed size are still written.
#ifndef RELIBRA_KERNELS_EXECUTOR_H_
#define RELIBRA_KERNELS_EXECUTOR_H_

#include <cstddef>

#include "absl/status/status.h"

struct CUstream_st;  // what CUDA's cudaStream_t points to

namespace relibra {

enum class Device { kCpu, kCuda };

struct Executor {
  Device device = Device::kCpu;
  CUstream_st* stream = nullptr;  // kCuda only; null is the default stream

  static Executor Cpu() { return {}; }
  static Executor Cuda(CUstream_st* stream) { return {Device::kCuda, stream}; }
};

// Scratch memory that the executor can reach, aligned to 256 bytes. Empty is fine when 0 bytes are
// asked for.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

// OK when calls with this device can run here; else UNAVAILABLE "no GPU: <reason>". Cheap enough to
// ask before each step, not before each call.
absl::Status CheckDevice(Device device);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_EXECUTOR_H_

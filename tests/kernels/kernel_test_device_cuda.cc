// Device memory and a stream of its own, so that a launch on the wrong stream shows.
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  GTEST_FAIL() << cudaGetErrorName(error) << ": " << cudaGetErrorString(error);
}

CUstream_st* TestStream() {
  static cudaStream_t stream = [] {
    cudaStream_t created = nullptr;
    Check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
    return created;
  }();
  return stream;
}

}  // namespace

Executor TestExecutor() { return Executor::Cuda(TestStream()); }

std::string SkipReason() {
  const absl::Status status = CheckDevice(Device::kCuda);
  // Any other error is not a reason to skip: the tests run into it and fail.
  return absl::IsUnavailable(status) ? std::string(status.message()) : "";
}

void* Allocate(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes));
  return memory;
}

void Free(void* memory) { Check(cudaFree(memory)); }

void CopyIn(void* target, const void* source, size_t bytes) {
  Check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, TestStream()));
  Check(cudaStreamSynchronize(TestStream()));
}

void CopyOut(void* target, const void* source, size_t bytes) {
  Check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, TestStream()));
  Check(cudaStreamSynchronize(TestStream()));
}

}  // namespace relibra::kernel_test

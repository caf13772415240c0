#include <cuda_runtime.h>

#include "kernels/cuda_launchers.h"

namespace relibra::cuda {

int ProbeDevice() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return error;
  return devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

ErrorText DescribeAndClear(int error) {
  static_cast<void>(cudaGetLastError());
  const auto code = static_cast<cudaError_t>(error);
  const bool no_gpu = code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice ||
                      code == cudaErrorStubLibrary;
  return {cudaGetErrorName(code), cudaGetErrorString(code), no_gpu};
}

}  // namespace relibra::cuda

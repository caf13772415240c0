#include "kernels/executor.h"

#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"

namespace relibra {

absl::Status CheckDevice(Device device) {
  if (device == Device::kCpu) return absl::OkStatus();
  return StatusOfCuda(cuda::ProbeDevice());
}

}  // namespace relibra

#include "kernels/argument_checks.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda_launchers.h"

namespace relibra {

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", expected ", low, "..", high));
}

absl::Status CheckPointer(absl::string_view name, const void* pointer, size_t alignment) {
  if (pointer == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
  if (!IsAligned(pointer, alignment)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not aligned to ", alignment, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckWorkspace(const Workspace& workspace, size_t needed) {
  if (needed == 0) return absl::OkStatus();
  if (workspace.bytes < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace has ", workspace.bytes, " bytes, expected ", needed));
  }
  return CheckPointer("workspace.data", workspace.data, 256);
}

absl::Status StatusOfCuda(int error) {
  if (error == 0) return absl::OkStatus();
  const cuda::ErrorText text = cuda::DescribeAndClear(error);
  if (text.no_gpu) {
    return absl::UnavailableError(absl::StrCat("no GPU: ", text.name, ": ", text.meaning));
  }
  return absl::InternalError(absl::StrCat("CUDA: ", text.name, ": ", text.meaning));
}

}  // namespace relibra

// Checks that the entry points share. Each gives OK or INVALID_ARGUMENT naming the argument.
#ifndef RELIBRA_KERNELS_ARGUMENT_CHECKS_H_
#define RELIBRA_KERNELS_ARGUMENT_CHECKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/executor.h"

namespace relibra {

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high);

// Not null, and a multiple of `alignment` bytes.
absl::Status CheckPointer(absl::string_view name, const void* pointer, size_t alignment);

// Large enough and aligned to 256 bytes, unless nothing is needed.
absl::Status CheckWorkspace(const Workspace& workspace, size_t needed);

// What a CUDA launcher's result means to the caller.
absl::Status StatusOfCuda(int error);

inline bool IsAligned(const void* pointer, size_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ARGUMENT_CHECKS_H_

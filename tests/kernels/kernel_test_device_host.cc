// Host memory. RELIBRA_KERNEL_TEST_EMULATED: kernels run by the CUDA emulation.
#include <cstdlib>

#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {

Executor TestExecutor() {
#ifdef RELIBRA_KERNEL_TEST_EMULATED
  return Executor::Cuda(nullptr);
#else
  return Executor::Cpu();
#endif
}

std::string SkipReason() { return ""; }
void* Allocate(size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
void Free(void* memory) { std::free(memory); }
void CopyIn(void* target, const void* source, size_t bytes) {
  if (bytes > 0) memcpy(target, source, bytes);
}
void CopyOut(void* target, const void* source, size_t bytes) { CopyIn(target, source, bytes); }

}  // namespace relibra::kernel_test

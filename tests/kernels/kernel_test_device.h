// Where the kernel tests run. The same test sources are linked three times:
//   kernels_test           the CPU implementation
//   kernels_emulated_test  the CUDA sources, compiled as C++ (cuda_emulation/)
//   kernels_gpu_test       the CUDA implementation on a GPU; every test is skipped where none is
#ifndef RELIBRA_TESTS_KERNELS_KERNEL_TEST_DEVICE_H_
#define RELIBRA_TESTS_KERNELS_KERNEL_TEST_DEVICE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/executor.h"

namespace relibra::kernel_test {

// Given by the file that each binary links: kernel_test_device_host.cc or _cuda.cc.
Executor TestExecutor();
std::string SkipReason();  // empty: run
void* Allocate(size_t bytes);
void Free(void* memory);
void CopyIn(void* target, const void* source, size_t bytes);
void CopyOut(void* target, const void* source, size_t bytes);  // after all work is done

inline bool OnCpu() { return TestExecutor().device == Device::kCpu; }

// Bytes that no test expects as a result.
inline constexpr uint8_t kPoison = 0xa5;

// An array where the kernels can reach it, between guard bytes that reads check: a kernel that
// writes outside fails the test.
template <typename T>
class DeviceArray {
 public:
  // Poisoned. `shift` elements past an address aligned to 256 bytes.
  explicit DeviceArray(size_t count, size_t shift = 0)
      : count_(count), shift_(shift), bytes_((count + shift) * sizeof(T) + 2 * kGuard) {
    memory_ = static_cast<uint8_t*>(Allocate(bytes_));
    const std::vector<uint8_t> poison(bytes_, kPoison);
    CopyIn(memory_, poison.data(), bytes_);
  }
  explicit DeviceArray(const std::vector<T>& values, size_t shift = 0)
      : DeviceArray(values.size(), shift) {
    CopyIn(data(), values.data(), values.size() * sizeof(T));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { Free(memory_); }

  T* data() { return reinterpret_cast<T*>(memory_ + kGuard) + shift_; }
  size_t size() const { return count_; }

  std::vector<T> Read() const {
    std::vector<uint8_t> all(bytes_);
    CopyOut(all.data(), memory_, bytes_);
    const size_t begin = kGuard + shift_ * sizeof(T);
    const size_t end = begin + count_ * sizeof(T);
    for (size_t i = 0; i < bytes_; ++i) {
      if ((i < begin || i >= end) && all[i] != kPoison) {
        ADD_FAILURE() << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(begin)
                      << " was written, outside an array of " << end - begin << " bytes";
        break;
      }
    }
    std::vector<T> values(count_);
    if (count_ > 0) memcpy(values.data(), all.data() + begin, count_ * sizeof(T));
    return values;
  }
  T ReadOne() const { return Read().at(0); }

 private:
  static constexpr size_t kGuard = 256;
  size_t count_;
  size_t shift_;
  size_t bytes_;
  uint8_t* memory_ = nullptr;
};

// Base of all tests that run kernels.
class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = SkipReason(); !reason.empty()) {
      GTEST_SKIP() << "skipped: " << reason;
    }
  }
};

}  // namespace relibra::kernel_test

#endif  // RELIBRA_TESTS_KERNELS_KERNEL_TEST_DEVICE_H_

#include "kernels/checksum.h"

#include <cstring>
#include <limits>

#include "kernels/argument_checks.h"
#include "kernels/checksum_element.h"
#include "kernels/cuda_launchers.h"

namespace relibra {
namespace {

uint64_t SumOfWords(const uint8_t* data, int64_t words) {
  uint64_t sum = 0;
  for (int64_t w = 0; w < words; ++w) {
    uint64_t word;
    memcpy(&word, data + w * 8, sizeof(word));  // any alignment
    sum += MixWord(word, static_cast<uint64_t>(w));
  }
  return sum;
}

uint64_t ChecksumOnCpu(const uint8_t* data, int64_t bytes) {
  const int64_t whole_words = bytes / 8;
  uint64_t sum = MixLength(bytes) + SumOfWords(data, whole_words);
  if (bytes % 8 != 0) {
    sum += MixWord(LoadWordBytewise(data, bytes, whole_words), static_cast<uint64_t>(whole_words));
  }
  return sum;
}

}  // namespace

absl::Status Checksum(const Executor& executor, const void* data, int64_t bytes,
                      uint64_t* checksum) {
  absl::Status status = CheckRange("bytes", bytes, 0, std::numeric_limits<int64_t>::max() - 8);
  if (status.ok() && bytes > 0) status = CheckPointer("data", data, 1);
  if (status.ok()) status = CheckPointer("checksum", checksum, alignof(uint64_t));
  if (!status.ok()) return status;
  if (executor.device == Device::kCpu) {
    *checksum = ChecksumOnCpu(static_cast<const uint8_t*>(data), bytes);
    return absl::OkStatus();
  }
  return StatusOfCuda(
      cuda::Checksum(static_cast<const uint8_t*>(data), bytes, checksum, executor.stream));
}

}  // namespace relibra

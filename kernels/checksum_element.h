// The per-word logic of the checksum.
#ifndef RELIBRA_KERNELS_CHECKSUM_ELEMENT_H_
#define RELIBRA_KERNELS_CHECKSUM_ELEMENT_H_

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace relibra {

static_assert(std::endian::native == std::endian::little,
              "the checksum is defined over little-endian words");

// A bijection of `word` for each index, with the index spread over all bits first. The multipliers
// are odd, the shifts fold the well-mixed high half into the low one.
RELIBRA_HOST_DEVICE uint64_t MixWord(uint64_t word, uint64_t index) {
  uint64_t mixed = word ^ ((index + 1) * 0x9e3779b97f4a7c15u);
  mixed ^= mixed >> 32;
  mixed *= 0xd6e8feb86659fd93u;
  mixed ^= mixed >> 32;
  mixed *= 0xd6e8feb86659fd93u;
  mixed ^= mixed >> 32;
  return mixed;
}

// The part of the checksum that stands for the length: the index is one that no word has.
RELIBRA_HOST_DEVICE uint64_t MixLength(int64_t bytes) {
  return MixWord(static_cast<uint64_t>(bytes), ~uint64_t{1});
}

// Word `index` of the buffer, read byte by byte: any alignment, and the last word padded with
// zeros.
RELIBRA_HOST_DEVICE uint64_t LoadWordBytewise(const uint8_t* data, int64_t bytes, int64_t index) {
  uint64_t word = 0;
  const int64_t begin = index * 8;
  const int64_t left = bytes - begin;
  const int count = left < 8 ? static_cast<int>(left) : 8;
  for (int i = 0; i < count; ++i) word |= uint64_t{data[begin + i]} << (8 * i);
  return word;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_CHECKSUM_ELEMENT_H_

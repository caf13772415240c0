// The per-element logic of the histogram, the instance map and the destination order.
#ifndef RELIBRA_KERNELS_ROUTING_ELEMENT_H_
#define RELIBRA_KERNELS_ROUTING_ELEMENT_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/host_device.h"

namespace relibra {

// What becomes of an id: counted as 0..limit-1, or one of two kinds of "left out".
inline constexpr int64_t kNotRouted = -1;
inline constexpr int64_t kInvalidId = -2;

RELIBRA_HOST_DEVICE int64_t ClassifyId(int64_t id, int64_t limit) {
  if (id < 0) return kNotRouted;
  return id < limit ? id : kInvalidId;
}

RELIBRA_HOST_DEVICE int64_t LoadId(const void* ids, IdType type, int64_t index) {
  switch (type) {
    case IdType::kU8:
      return static_cast<const uint8_t*>(ids)[index];
    case IdType::kI8:
      return static_cast<const int8_t*>(ids)[index];
    case IdType::kU16:
      return static_cast<const uint16_t*>(ids)[index];
    case IdType::kI16:
      return static_cast<const int16_t*>(ids)[index];
    case IdType::kI32:
      return static_cast<const int32_t*>(ids)[index];
    case IdType::kI64:
      break;
  }
  return static_cast<const int64_t*>(ids)[index];
}

// The instance that serves occurrence k of an expert's n (0 <= k < n), given the quotas of its
// instances; the rule is instance_map.h's. Returns an index into quota, always below instances.
RELIBRA_HOST_DEVICE int32_t InstanceOfOccurrence(uint32_t k, uint32_t n, const uint32_t* quota,
                                                 int32_t instances) {
  if (instances == 1) return 0;
  uint64_t planned = 0;
  for (int32_t i = 0; i < instances; ++i) planned += quota[i];
  if (planned == 0) return 0;
  // Below 2^63: k < 2^31, and the sum of an expert's quotas is below 2^32.
  const uint64_t place = n == planned ? k : k * planned / n;
  uint64_t end = 0;
  for (int32_t i = 0; i < instances; ++i) {
    end += quota[i];
    if (place < end) return i;
  }
  return instances - 1;  // not reached while place < planned
}

// The first index of sorted[0..count) that is not below `key`; count when there is none.
RELIBRA_HOST_DEVICE int32_t LowerBound(const uint32_t* sorted, int32_t count, uint32_t key) {
  int32_t begin = 0;
  int32_t length = count;
  while (length > 0) {
    const int32_t half = length / 2;
    if (sorted[begin + half] < key) {
      begin += half + 1;
      length -= half + 1;
    } else {
      length = half;
    }
  }
  return begin;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ROUTING_ELEMENT_H_

// Eight neighbouring elements of a row: the unit of work of the kernels that compute on rows.
// Loaded and stored by the widest accesses the type allows when the row is aligned, else one by
// one.
#ifndef RELIBRA_KERNELS_FLOAT_GROUP_H_
#define RELIBRA_KERNELS_FLOAT_GROUP_H_

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

#include <cassert>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/float_convert.h"
#include "kernels/host_device.h"

namespace relibra {

inline constexpr int kGroup = 8;  // elements

// SizeOf(type) as a constant, for device code: a constexpr function would have to be marked.
template <FloatType type>
inline constexpr int kElementBytes = static_cast<int>(SizeOf(type));

// Groups of 4-byte words: 2 of fp8, 4 of 16-bit types, 8 of fp32.
template <FloatType type>
inline constexpr int kGroupWords = static_cast<int>(kGroup* SizeOf(type) / 4);

template <FloatType type>
struct RawGroup {
  uint32_t words[kGroupWords<type>];
};

// source: aligned to 16 bytes, or 8 for fp8.
template <FloatType type>
RELIBRA_HOST_DEVICE RawGroup<type> LoadGroup(const void* source) {
  RawGroup<type> group;
#ifdef __CUDA_ARCH__
  if constexpr (kGroupWords<type> == 2) {
    const uint2 v = *static_cast<const uint2*>(source);
    group.words[0] = v.x;
    group.words[1] = v.y;
  } else {
    RELIBRA_UNROLL
    for (int i = 0; i < kGroupWords<type>; i += 4) {
      const uint4 v = static_cast<const uint4*>(source)[i / 4];
      group.words[i] = v.x;
      group.words[i + 1] = v.y;
      group.words[i + 2] = v.z;
      group.words[i + 3] = v.w;
    }
  }
#else
  assert(reinterpret_cast<uintptr_t>(source) % (kGroupWords<type> == 2 ? 8 : 16) == 0);
  memcpy(group.words, source, sizeof(group.words));
#endif
  return group;
}

template <FloatType type>
RELIBRA_HOST_DEVICE void StoreGroup(const RawGroup<type>& group, void* target) {
#ifdef __CUDA_ARCH__
  static_assert(kGroupWords<type> % 4 == 0);
  RELIBRA_UNROLL
  for (int i = 0; i < kGroupWords<type>; i += 4) {
    static_cast<uint4*>(target)[i / 4] =
        make_uint4(group.words[i], group.words[i + 1], group.words[i + 2], group.words[i + 3]);
  }
#else
  assert(reinterpret_cast<uintptr_t>(target) % 16 == 0);
  memcpy(target, group.words, sizeof(group.words));
#endif
}

// Element i of the group, i a constant after unrolling.
template <FloatType type>
RELIBRA_HOST_DEVICE float ElementOf(const RawGroup<type>& group, int i) {
  constexpr int kBits = kElementBytes<type> * 8;
  constexpr int kPerWord = 32 / kBits;
  constexpr uint32_t kMask = 0xffffffffu >> (32 - kBits);
  return Widen<type>((group.words[i / kPerWord] >> (i % kPerWord * kBits)) & kMask);
}

template <FloatType type>
RELIBRA_HOST_DEVICE RawGroup<type> GroupOf(const float (&values)[kGroup]) {
  constexpr int kBits = kElementBytes<type> * 8;
  constexpr int kPerWord = 32 / kBits;
  RawGroup<type> group;
  RELIBRA_UNROLL
  for (int w = 0; w < kGroupWords<type>; ++w) {
    uint32_t word = 0;
    RELIBRA_UNROLL
    for (int j = 0; j < kPerWord; ++j) {
      word |= Narrow<type>(values[w * kPerWord + j]) << (j * kBits);
    }
    group.words[w] = word;
  }
  return group;
}

// One element, for rows that are not aligned. The type is a run-time value: this path is rare, and
// one kernel for all types keeps the build small.
RELIBRA_HOST_DEVICE float LoadElement(const void* data, FloatType type, int64_t index) {
  switch (type) {
    case FloatType::kBf16:
      return FloatOfBf16(static_cast<const uint16_t*>(data)[index]);
    case FloatType::kFp16:
      return FloatOfFp16(static_cast<const uint16_t*>(data)[index]);
    case FloatType::kFp8E4m3:
      return FloatOfFp8E4m3(static_cast<const uint8_t*>(data)[index]);
    case FloatType::kFp32:
      break;
  }
  return static_cast<const float*>(data)[index];
}

RELIBRA_HOST_DEVICE void StoreElement(float value, void* data, FloatType type, int64_t index) {
  if (type == FloatType::kBf16) {
    static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(Bf16OfFloat(value));
  } else if (type == FloatType::kFp16) {
    static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(Fp16OfFloat(value));
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_FLOAT_GROUP_H_

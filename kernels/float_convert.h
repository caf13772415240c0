// Conversions between fp32 and the narrow float formats, bit by bit, so that the CPU and every GPU
// give the same result. Narrowing rounds to nearest, ties to even; NaN stays NaN.
#ifndef RELIBRA_KERNELS_FLOAT_CONVERT_H_
#define RELIBRA_KERNELS_FLOAT_CONVERT_H_

#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/host_device.h"

namespace relibra {

RELIBRA_HOST_DEVICE float FloatOfBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

RELIBRA_HOST_DEVICE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

RELIBRA_HOST_DEVICE float FloatOfBf16(uint32_t bf16) { return FloatOfBits(bf16 << 16); }

RELIBRA_HOST_DEVICE uint32_t Bf16OfFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (bits >> 16) | 0x40u;  // keep NaN from becoming inf
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

RELIBRA_HOST_DEVICE float FloatOfFp16(uint32_t fp16) {
  const uint32_t sign = (fp16 & 0x8000u) << 16;
  const uint32_t exponent = (fp16 >> 10) & 0x1fu;
  const uint32_t mantissa = fp16 & 0x3ffu;
  uint32_t magnitude;
  if (exponent == 0) {
    // Subnormal: a whole number of 2^-24, a normal fp32, so flush-to-zero modes do not matter.
    magnitude = BitsOfFloat(static_cast<float>(mantissa) * 5.9604644775390625e-8f);
  } else if (exponent == 31) {
    magnitude = 0x7f800000u | (mantissa << 13);
  } else {
    magnitude = ((exponent + 112) << 23) | (mantissa << 13);
  }
  return FloatOfBits(sign | magnitude);
}

RELIBRA_HOST_DEVICE uint32_t Fp16OfFloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on rounds to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal
    // In units of 2^-24; adding 2^23 leaves no fraction bits, so the addition does the rounding.
    const float rounded = FloatOfBits(magnitude) * 16777216.0f + 8388608.0f;
    return sign | (BitsOfFloat(rounded) - 0x4b000000u);
  }
  return sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13);
}

RELIBRA_HOST_DEVICE float FloatOfFp8E4m3(uint32_t fp8) {
  const uint32_t sign = (fp8 & 0x80u) << 24;
  const uint32_t exponent = (fp8 >> 3) & 0xfu;
  const uint32_t mantissa = fp8 & 7u;
  uint32_t magnitude;
  if ((fp8 & 0x7fu) == 0x7fu) {
    magnitude = 0x7fc00000u;
  } else if (exponent == 0) {
    magnitude = BitsOfFloat(static_cast<float>(mantissa) * 0.001953125f);  // units of 2^-9
  } else {
    magnitude = ((exponent + 120) << 23) | (mantissa << 20);
  }
  return FloatOfBits(sign | magnitude);
}

// The element's bits, in the low bits of the word, to fp32.
template <FloatType type>
RELIBRA_HOST_DEVICE float Widen(uint32_t bits) {
  if constexpr (type == FloatType::kBf16) {
    return FloatOfBf16(bits);
  } else if constexpr (type == FloatType::kFp16) {
    return FloatOfFp16(bits);
  } else if constexpr (type == FloatType::kFp8E4m3) {
    return FloatOfFp8E4m3(bits);
  } else {
    return FloatOfBits(bits);
  }
}

// fp32 to the element's bits, in the low bits of the word.
template <FloatType type>
RELIBRA_HOST_DEVICE uint32_t Narrow(float value) {
  static_assert(type != FloatType::kFp8E4m3,
                "no kernel writes computed fp8: scales would be needed");
  if constexpr (type == FloatType::kBf16) {
    return Bf16OfFloat(value);
  } else if constexpr (type == FloatType::kFp16) {
    return Fp16OfFloat(value);
  } else {
    return BitsOfFloat(value);
  }
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_FLOAT_CONVERT_H_

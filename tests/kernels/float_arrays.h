// Random rows of every float type, and their exact values in float64 by another route than
// kernels/float_convert.h: the value of a bit pattern is worked out with ldexp, and rounding picks
// the nearest of all values of the type.
#ifndef RELIBRA_TESTS_KERNELS_FLOAT_ARRAYS_H_
#define RELIBRA_TESTS_KERNELS_FLOAT_ARRAYS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace relibra::kernel_test {

inline constexpr FloatType kAllFloatTypes[] = {FloatType::kBf16, FloatType::kFp16, FloatType::kFp32,
                                               FloatType::kFp8E4m3};
inline constexpr FloatType kComputedFloatTypes[] = {FloatType::kBf16, FloatType::kFp16,
                                                    FloatType::kFp32};

inline std::string NameOf(FloatType type) {
  static const char* const kNames[] = {"bf16", "fp16", "fp32", "fp8"};
  return kNames[static_cast<int>(type)];
}

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

inline FloatFormat FormatOf(FloatType type) {
  switch (type) {
    case FloatType::kBf16:
      return {8, 7, true};
    case FloatType::kFp16:
      return {5, 10, true};
    case FloatType::kFp8E4m3:
      return {4, 3, false};
    case FloatType::kFp32:
      break;
  }
  return {8, 23, true};
}

// The value of a bit pattern, by the textbook.
inline double ExactValue(FloatType type, uint32_t bits) {
  const FloatFormat format = FormatOf(type);
  const uint32_t mantissa_mask = (1u << format.mantissa_bits) - 1;
  const uint32_t exponent_mask = (1u << format.exponent_bits) - 1;
  const uint32_t mantissa = bits & mantissa_mask;
  const uint32_t exponent = (bits >> format.mantissa_bits) & exponent_mask;
  const double sign = (bits >> (format.mantissa_bits + format.exponent_bits)) != 0 ? -1 : 1;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  if (exponent == exponent_mask) {
    if (!format.has_infinity) {
      if (mantissa == mantissa_mask) return std::numeric_limits<double>::quiet_NaN();
    } else if (mantissa != 0) {
      return std::numeric_limits<double>::quiet_NaN();
    } else {
      return sign * std::numeric_limits<double>::infinity();
    }
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << format.mantissa_bits),
                           static_cast<int>(exponent) - bias - format.mantissa_bits);
}

// The largest error that rounding a value of this size to the type can make.
inline double HalfStep(FloatType type, double value) {
  const FloatFormat format = FormatOf(type);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = value == 0 ? 1 - bias : std::max(std::ilogb(value), 1 - bias);
  return std::ldexp(0.5, exponent - format.mantissa_bits);
}

inline uint32_t BitsAt(FloatType type, const std::vector<uint8_t>& bytes, size_t index) {
  uint32_t bits = 0;
  memcpy(&bits, bytes.data() + index * SizeOf(type), SizeOf(type));
  return bits;
}

inline double ValueAt(FloatType type, const std::vector<uint8_t>& bytes, size_t index) {
  return ExactValue(type, BitsAt(type, bytes, index));
}

// `count` elements of about unit size, as raw bytes.
inline std::vector<uint8_t> RandomFloats(FloatType type, size_t count, std::mt19937_64& random) {
  const size_t size = SizeOf(type);
  std::vector<uint8_t> bytes(count * size);
  const FloatFormat format = FormatOf(type);
  const uint32_t bias = (1u << (format.exponent_bits - 1)) - 1;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t draw = random();
    const auto sign = static_cast<uint32_t>(draw & 1);
    const auto exponent = bias - 3 + static_cast<uint32_t>((draw >> 1) % 4);
    const auto mantissa = static_cast<uint32_t>(draw >> 8) & ((1u << format.mantissa_bits) - 1);
    const uint32_t bits = sign << (format.exponent_bits + format.mantissa_bits) |
                          exponent << format.mantissa_bits | mantissa;
    memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

inline std::vector<float> RandomWeights(size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> weights(count);
  for (float& weight : weights) weight = draw(random);
  return weights;
}

}  // namespace relibra::kernel_test

#endif  // RELIBRA_TESTS_KERNELS_FLOAT_ARRAYS_H_

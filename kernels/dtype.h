// Element types of the arrays that the kernels read and write.
#ifndef RELIBRA_KERNELS_DTYPE_H_
#define RELIBRA_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace relibra {

// Routed expert ids as routers and rollout engines hand them out. An id below 0 means "not routed"
// (padding, a dense layer, a row that is missing); unsigned types have no such value.
enum class IdType : int { kU8, kI8, kU16, kI16, kI32, kI64 };

// Hidden states, gradients and weights.
//   kFp8E4m3: 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinity, NaN is 0x7f and 0xff; its
//   values are multiplied by fp32 scales that lie beside it, see FloatRows in permute.h.
enum class FloatType : int { kBf16, kFp16, kFp32, kFp8E4m3 };

constexpr bool IsValid(IdType type) { return type >= IdType::kU8 && type <= IdType::kI64; }
constexpr bool IsValid(FloatType type) {
  return type >= FloatType::kBf16 && type <= FloatType::kFp8E4m3;
}

// Bytes an element; 0 for a value that is no type.
constexpr size_t SizeOf(IdType type) {
  switch (type) {
    case IdType::kU8:
    case IdType::kI8:
      return 1;
    case IdType::kU16:
    case IdType::kI16:
      return 2;
    case IdType::kI32:
      return 4;
    case IdType::kI64:
      return 8;
  }
  return 0;
}

constexpr size_t SizeOf(FloatType type) {
  switch (type) {
    case FloatType::kFp8E4m3:
      return 1;
    case FloatType::kBf16:
    case FloatType::kFp16:
      return 2;
    case FloatType::kFp32:
      return 4;
  }
  return 0;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_DTYPE_H_

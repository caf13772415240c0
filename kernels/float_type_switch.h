// Turns a run-time FloatType into a compile-time one.
#ifndef RELIBRA_KERNELS_FLOAT_TYPE_SWITCH_H_
#define RELIBRA_KERNELS_FLOAT_TYPE_SWITCH_H_

#include <type_traits>

#include "kernels/dtype.h"

namespace relibra {

template <FloatType type>
using FloatTypeConstant = std::integral_constant<FloatType, type>;

// Calls visit(FloatTypeConstant<type>()) for any type.
template <typename Visit>
auto WithFloatType(FloatType type, const Visit& visit) {
  switch (type) {
    case FloatType::kBf16:
      return visit(FloatTypeConstant<FloatType::kBf16>());
    case FloatType::kFp16:
      return visit(FloatTypeConstant<FloatType::kFp16>());
    case FloatType::kFp8E4m3:
      return visit(FloatTypeConstant<FloatType::kFp8E4m3>());
    case FloatType::kFp32:
      break;
  }
  return visit(FloatTypeConstant<FloatType::kFp32>());
}

// The same for a type that is not fp8.
template <typename Visit>
auto WithComputedFloatType(FloatType type, const Visit& visit) {
  switch (type) {
    case FloatType::kBf16:
      return visit(FloatTypeConstant<FloatType::kBf16>());
    case FloatType::kFp16:
      return visit(FloatTypeConstant<FloatType::kFp16>());
    default:
      return visit(FloatTypeConstant<FloatType::kFp32>());
  }
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_FLOAT_TYPE_SWITCH_H_

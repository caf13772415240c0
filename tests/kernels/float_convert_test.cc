#include "kernels/float_convert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/float_arrays.h"

namespace relibra::kernel_test {
namespace {

template <FloatType type>
void ExpectExactWidening() {
  const uint32_t patterns = 1u << (8 * SizeOf(type));
  for (uint32_t bits = 0; bits < patterns; ++bits) {
    const double expected = ExactValue(type, bits);
    const double widened = Widen<type>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(widened)) << bits;
    } else {
      ASSERT_EQ(widened, expected) << bits;
      ASSERT_EQ(std::signbit(widened), std::signbit(expected)) << bits;
    }
  }
}

TEST(FloatConvertTest, WidensEveryBf16) { ExpectExactWidening<FloatType::kBf16>(); }
TEST(FloatConvertTest, WidensEveryFp16) { ExpectExactWidening<FloatType::kFp16>(); }
TEST(FloatConvertTest, WidensEveryFp8) { ExpectExactWidening<FloatType::kFp8E4m3>(); }

// Between each two neighbours of the narrow type: below the middle rounds down, above it up, the
// middle to the even one.
template <FloatType type>
void ExpectNearestEven() {
  const FloatFormat format = FormatOf(type);
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  const uint32_t sign = 1u << (format.exponent_bits + format.mantissa_bits);
  for (uint32_t low = 0; low < infinity; ++low) {
    const double below = ExactValue(type, low);
    // What follows the largest number is the power of two that infinity stands for.
    const double above = low + 1 < infinity ? ExactValue(type, low + 1)
                                            : std::ldexp(1.0, 1 << (format.exponent_bits - 1));
    const double middle = (below + above) / 2;
    const auto exact_middle = static_cast<float>(middle);
    ASSERT_EQ(exact_middle, middle);
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(Narrow<type>(static_cast<float>(below)), low);
    ASSERT_EQ(Narrow<type>(exact_middle), even) << low;
    ASSERT_EQ(Narrow<type>(std::nextafterf(exact_middle, 0.0f)), low) << low;
    ASSERT_EQ(Narrow<type>(std::nextafterf(exact_middle, INFINITY)), low + 1) << low;
    ASSERT_EQ(Narrow<type>(-exact_middle), even | sign) << low;
  }
  EXPECT_EQ(Narrow<type>(INFINITY), infinity);
  EXPECT_EQ(Narrow<type>(-INFINITY), infinity | sign);
}

TEST(FloatConvertTest, RoundsToTheNearestBf16) { ExpectNearestEven<FloatType::kBf16>(); }
TEST(FloatConvertTest, RoundsToTheNearestFp16) { ExpectNearestEven<FloatType::kFp16>(); }

TEST(FloatConvertTest, KeepsNan) {
  // A NaN whose mantissa lies only in bits that are cut off would become infinity.
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16OfFloat(FloatOfBits(bits))))) << bits;
    EXPECT_TRUE(std::isnan(FloatOfFp16(Fp16OfFloat(FloatOfBits(bits))))) << bits;
  }
}

}  // namespace
}  // namespace relibra::kernel_test

// This file and generator.cc are compiled with -ffp-contract=off: a fused multiply-add rounds once
// where the two operations round twice, and not every machine has it.
#include "planner_service/trace/random_stream.h"

#include <bit>
#include <cmath>

namespace relibra {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 33 bits, so that small multiples are exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep+0;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// 2^exponent for normal results.
double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

}  // namespace

RandomStream::RandomStream(std::initializer_list<uint64_t> keys) {
  for (uint64_t key : keys) state_ = Mix(state_ + 0x9E3779B97F4A7C15 + Mix(key));
}

uint64_t RandomStream::Next() {
  state_ += 0x9E3779B97F4A7C15;
  return Mix(state_);
}

double RandomStream::Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

uint64_t RandomStream::Below(uint64_t n) {
  // Rejects the incomplete last run of n numbers.
  const uint64_t limit = ~uint64_t{0} - (~uint64_t{0} % n + 1) % n;
  uint64_t number = Next();
  while (number > limit) number = Next();
  return number % n;
}

double RandomStream::Normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  double x = 0;
  double y = 0;
  double square = 0;
  do {
    x = 2 * Uniform() - 1;
    y = 2 * Uniform() - 1;
    square = x * x + y * y;
  } while (square >= 1 || square == 0);
  const double factor = std::sqrt(-2 * ExactLog(square) / square);  // sqrt is exact by IEEE 754
  spare_ = y * factor;
  has_spare_ = true;
  return x * factor;
}

double ExactExp(double x) {
  // x = k ln 2 + r with |r| <= ln 2 / 2; Taylor's series of e^r to the 13th power.
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int n = 13; n >= 1; --n) sum = 1 + sum * r / n;
  return sum * PowerOfTwo(static_cast<int>(k));
}

double ExactLog(double x) {
  // x = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(t) with t = (m - 1) / (m + 1).
  const auto bits = std::bit_cast<uint64_t>(x);
  int k = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m /= 2;
    ++k;
  }
  const double t = (m - 1) / (m + 1);
  const double t2 = t * t;
  double sum = 0;
  for (int n = 21; n >= 1; n -= 2) sum = sum * t2 + 1.0 / n;
  return (2 * t * sum + k * kLn2Low) + k * kLn2High;
}

}  // namespace relibra

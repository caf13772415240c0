#include "planner_service/core/swap_search.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace relibra {
namespace {

// Sum over sets of |sum of the set's vectors|^2, from the vectors themselves.
double Spread(const std::vector<double>& vectors, size_t dims, int num_sets,
              const std::vector<uint32_t>& set_of) {
  std::vector<double> sums(num_sets * dims);
  for (size_t q = 0; q < set_of.size(); ++q) {
    for (size_t i = 0; i < dims; ++i) sums[set_of[q] * dims + i] += vectors[q * dims + i];
  }
  double spread = 0;
  for (double sum : sums) spread += sum * sum;
  return spread;
}

// Integers so scaled that the longest vector needs no rounding would be rare; the search rounds, so
// it may stop a hair short of a local optimum, but never accepts a swap that is clearly worse.
TEST(SwapSearch, NoSwapThatWouldHelpIsLeft) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t count = 2 + random() % 40;
    const size_t dims = 1 + random() % 50;
    const int num_sets = 2 + static_cast<int>(random() % 4);
    std::vector<double> vectors(count * dims);
    for (double& v : vectors) v = static_cast<double>(random() % 2001) - 1000;
    std::vector<uint32_t> set_of(count);
    for (size_t q = 0; q < count; ++q) set_of[q] = q % num_sets;
    const double before = Spread(vectors, dims, num_sets, set_of);
    SwapSearch search(vectors, count, InOrder);
    std::vector<uint32_t> mirror = set_of;
    search.Run(
        num_sets, 1000, absl::MakeSpan(set_of), [](size_t, size_t) { return true; },
        [&](size_t q, size_t r) { std::swap(mirror[q], mirror[r]); });
    EXPECT_EQ(mirror, set_of) << "every swap is told";
    const double after = Spread(vectors, dims, num_sets, set_of);
    EXPECT_LE(after, before * (1 + 1e-9));
    for (size_t q = 0; q < count; ++q) {
      for (size_t r = 0; r < q; ++r) {
        std::swap(set_of[q], set_of[r]);
        EXPECT_GE(Spread(vectors, dims, num_sets, set_of), after - 1e-2 * before - 1)
            << q << " " << r;
        std::swap(set_of[q], set_of[r]);
      }
    }
  }
}

TEST(SwapSearch, ForbiddenSwapsAreNotMade) {
  const std::vector<double> vectors = {5, 5, -5, -5};
  std::vector<uint32_t> set_of = {0, 0, 1, 1};
  SwapSearch search(vectors, 4, InOrder);
  auto nothing = [](size_t, size_t) {};
  EXPECT_EQ(search.Run(
                2, 10, absl::MakeSpan(set_of), [](size_t, size_t) { return false; }, nothing),
            0);
  EXPECT_EQ(search.Run(
                2, 10, absl::MakeSpan(set_of), [](size_t, size_t) { return true; }, nothing),
            1);
  EXPECT_NE(set_of[0], set_of[1]);
  EXPECT_NE(set_of[2], set_of[3]);
}

TEST(SwapSearch, ZerosAndHugeNumbersDoNotOverflow) {
  for (double size : {0.0, 1e-300, 1e150}) {
    std::vector<double> vectors(64 * 33);
    for (size_t i = 0; i < vectors.size(); ++i) vectors[i] = (i * 7919 % 13 - 6.0) * size;
    std::vector<uint32_t> set_of(64);
    for (size_t q = 0; q < 64; ++q) set_of[q] = q % 2;
    SwapSearch search(vectors, 64, InOrder);
    search.Run(
        2, 100, absl::MakeSpan(set_of), [](size_t, size_t) { return true; }, [](size_t, size_t) {});
    EXPECT_EQ(std::count(set_of.begin(), set_of.end(), 0), 32);
  }
}

TEST(SwapSearch, NothingIsSwappedWhereThereIsNothing) {
  SwapSearch search({}, 0, InOrder);
  std::vector<uint32_t> none;
  EXPECT_EQ(
      search.Run(
          3, 5, absl::MakeSpan(none), [](size_t, size_t) { return true; }, [](size_t, size_t) {}),
      0);
}

}  // namespace
}  // namespace relibra

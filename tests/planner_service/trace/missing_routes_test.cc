#include "planner_service/trace/missing_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint32_t> All(const Loads& loads) {
  return {loads.counts().begin(), loads.counts().end()};
}

TEST(MissingRoutes, AreSpreadAsTheLayersRecordedOnesAre) {
  // Over both micro-batches 6 : 2. Four tokens x 2 choices = 8 pairs in micro-batch 1: 6 and 2.
  Loads loads = *Loads::FromCounts({.micro_batches = 2, .layers = 1, .sources = 1, .experts = 2},
                                   {6, 0, 0, 2});
  ASSERT_TRUE(SpreadMissingRoutes({0, 4}, 2, loads).ok());
  EXPECT_THAT(All(loads), ElementsAre(6, 0, 6, 4));
}

TEST(MissingRoutes, WhatRoundingWithholdsIsGivenInTheNextPlace) {
  // Three experts alike, one pair a place: each gets one in turn.
  Loads loads = *Loads::FromCounts({.micro_batches = 4, .layers = 1, .sources = 1, .experts = 3},
                                   {1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  ASSERT_TRUE(SpreadMissingRoutes({0, 1, 1, 1}, 1, loads).ok());
  EXPECT_THAT(All(loads), ElementsAre(1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1));
}

TEST(MissingRoutes, ADenseLayerGetsNothing) {
  Loads loads =
      *Loads::FromCounts({.micro_batches = 1, .layers = 2, .sources = 1, .experts = 1}, {0, 5});
  ASSERT_TRUE(SpreadMissingRoutes({9, 1}, 3, loads).ok());
  EXPECT_THAT(All(loads), ElementsAre(0, 8));
}

TEST(MissingRoutes, TotalsAreExactAndSharesNeverFarOff) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const LoadShape shape{.micro_batches = 1 + static_cast<int>(random() % 5),
                          .layers = 1 + static_cast<int>(random() % 3),
                          .sources = 1 + static_cast<int>(random() % 5),
                          .experts = 1 + static_cast<int>(random() % 9)};
    Loads loads = *Loads::Create(shape);
    std::vector<uint32_t> unrouted(shape.micro_batches * shape.layers * shape.sources);
    for (uint32_t& tokens : unrouted) tokens = random() % 50;
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (int l = 0; l < shape.layers; ++l) {
        for (uint32_t& count : loads.Mutable(m, l)) count = 1 + random() % 100;
      }
    }
    const Loads before = loads;
    ASSERT_TRUE(SpreadMissingRoutes(unrouted, 3, loads).ok());
    for (int l = 0; l < shape.layers; ++l) {
      std::vector<double> weight(shape.experts), added(shape.experts);
      double total = 0, pairs = 0;
      for (int m = 0; m < shape.micro_batches; ++m) {
        for (int s = 0; s < shape.sources; ++s) {
          uint64_t here = 0;
          for (int e = 0; e < shape.experts; ++e) {
            const uint32_t old = before.At(m, l)[s * shape.experts + e];
            const uint32_t now = loads.At(m, l)[s * shape.experts + e];
            ASSERT_GE(now, old);
            here += now - old;
            added[e] += now - old;
            weight[e] += old;
            total += old;
          }
          const uint64_t wanted = 3 * unrouted[(m * shape.layers + l) * shape.sources + s];
          EXPECT_EQ(here, wanted);
          pairs += static_cast<double>(wanted);
        }
      }
      for (int e = 0; e < shape.experts; ++e) {
        EXPECT_LT(std::abs(added[e] - pairs * weight[e] / total), 2);
      }
    }
  }
}

TEST(MissingRoutes, AnOverflowAndAWrongShapeAreNamed) {
  Loads loads = *Loads::FromCounts({.micro_batches = 1, .layers = 1, .sources = 1, .experts = 2},
                                   {1, 4'294'967'290});
  EXPECT_THAT(std::string(SpreadMissingRoutes({100}, 1, loads).message()),
              HasSubstr("layer 0, micro-batch 0, rank 0, expert 1: the load with missing routes"));
  EXPECT_THAT(std::string(SpreadMissingRoutes({1, 2}, 1, loads).message()),
              HasSubstr("expected 1 numbers"));
}

}  // namespace
}  // namespace relibra

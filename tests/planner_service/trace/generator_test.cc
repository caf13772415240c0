#include "planner_service/trace/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "planner_service/trace/random_stream.h"

namespace relibra {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

GeneratorOptions Small() {
  GeneratorOptions options;
  options.num_ranks = 4;
  options.micro_batches = 3;
  options.layers = 2;
  options.experts = 16;
  options.top_k = 4;
  options.tokens_per_bin = 1000;
  options.seed = 7;
  return options;
}

TEST(RandomStream, NumbersAreThoseOfSplitMix64) {
  // Worked out by a Python program that gives SplitMix64's published numbers for the state 1234567
  // (6457827717110365317, 3203168211198807973).
  RandomStream random({1, 2});
  EXPECT_EQ(random.Next(), 1750467486691502325U);
  EXPECT_EQ(random.Next(), 1112546439078473552U);
  EXPECT_NE(RandomStream({2, 1}).Next(), 1750467486691502325U);
}

TEST(RandomStream, ExactFunctionsAgreeWithTheLibrarys) {
  for (double x = -50; x < 50; x += 0.37) {
    EXPECT_NEAR(ExactExp(x) / std::exp(x), 1, 1e-14) << x;
    const double y = std::exp(x);
    EXPECT_NEAR(ExactLog(y), std::log(y), 1e-13 * std::max(1.0, std::abs(x))) << y;
  }
  EXPECT_EQ(ExactExp(0), 1);
  EXPECT_EQ(ExactLog(1), 0);
}

TEST(RandomStream, NormalsHaveTheirMoments) {
  RandomStream random({3});
  const int count = 200'000;
  double sum = 0, squares = 0, fourths = 0;
  for (int i = 0; i < count; ++i) {
    const double x = random.Normal();
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
  }
  EXPECT_NEAR(sum / count, 0, 0.01);  // 4.5 standard errors
  EXPECT_NEAR(squares / count, 1, 0.015);
  EXPECT_NEAR(fourths / count, 3, 0.12);
}

TEST(RandomStream, BelowIsEven) {
  RandomStream random({4});
  std::vector<int> seen(7);
  for (int i = 0; i < 70'000; ++i) ++seen[random.Below(7)];
  for (int count : seen) EXPECT_NEAR(count, 10'000, 450);
  EXPECT_EQ(random.Below(1), 0);
}

TEST(Generator, EverySequencesCountsAreWholeTokensWithNoExpertTwice) {
  GeneratorOptions options = Small();
  for (TraceFamily family : {TraceFamily::kRl, TraceFamily::kUniform, TraceFamily::kOneHot}) {
    for (double length_sigma : {0.0, 1.0}) {
      options.family = family;
      options.length_sigma = length_sigma;
      const SequenceTrace trace = *GenerateSequences(options, InOrder);
      ASSERT_EQ(trace.num_sequences(), 24);
      for (size_t q = 0; q < trace.num_sequences(); ++q) {
        for (int l = 0; l < options.layers; ++l) {
          const auto row = trace.HistogramOf(q).subspan(l * 16, 16);
          uint64_t sum = 0;
          for (uint32_t count : row) {
            sum += count;
            EXPECT_LE(count, trace.tokens[q]);
          }
          EXPECT_EQ(sum, trace.tokens[q] * 4);
        }
      }
    }
  }
}

TEST(Generator, CountsAreTheSumsOfTheSequences) {
  const SequenceTrace sequences = *GenerateSequences(Small(), InOrder);
  const CountTrace counts = *GenerateCounts(Small(), InOrder);
  EXPECT_EQ(counts.loads.counts(), CountsOf(sequences, 4)->loads.counts());
}

TEST(Generator, TheSameSeedGivesTheSameTraceWhateverTheThreads) {
  auto backwards = [](int n, absl::FunctionRef<void(int)> task) {
    for (int i = n; i-- > 0;) task(i);
  };
  EXPECT_EQ(GenerateCounts(Small(), InOrder)->loads.counts(),
            GenerateCounts(Small(), backwards)->loads.counts());
  GeneratorOptions other = Small();
  other.seed = 8;
  EXPECT_NE(GenerateCounts(Small(), InOrder)->loads.counts(),
            GenerateCounts(other, InOrder)->loads.counts());
}

TEST(Generator, SequencesStandInTheOrderOfRolloutsAndGroupsShareTheirPrompt) {
  const SequenceTrace trace = *GenerateSequences(Small(), InOrder);
  EXPECT_EQ(trace.source_ranks[0], 0);
  EXPECT_EQ(trace.source_ranks[1], 0);
  EXPECT_EQ(trace.source_ranks[2], 1);
  EXPECT_EQ(trace.micro_batches[7], 0);
  EXPECT_EQ(trace.micro_batches[8], 1);
  EXPECT_EQ(trace.prompt_groups[7], 0);
  EXPECT_EQ(trace.prompt_groups[8], 1);
  EXPECT_THAT(trace.tokens, Each(500));
}

TEST(Generator, UniformAndOneHotAreWhatTheySay) {
  GeneratorOptions options = Small();
  options.family = TraceFamily::kUniform;
  EXPECT_THAT(GenerateCounts(options, InOrder)->loads.counts(), Each(250));  // 1000 x 4 / 16
  options.family = TraceFamily::kOneHot;
  const CountTrace trace = *GenerateCounts(options, InOrder);
  EXPECT_NEAR(trace.loads.At(0, 0)[0], 1000, 1);  // every token
  EXPECT_NEAR(trace.loads.At(0, 1)[1], 1000, 1);
  EXPECT_NEAR(trace.loads.At(0, 0)[1], 200, 1);  // 3000 / 15
}

TEST(Generator, LengthsHaveTheMeanAskedForAndKeepTheCap) {
  GeneratorOptions options = Small();
  options.num_ranks = 64;
  options.micro_batches = 32;
  options.layers = 1;
  options.tokens_per_bin = 8192;
  options.length_sigma = 1;
  const SequenceTrace trace = *GenerateSequences(options, InOrder);
  double sum = 0;
  for (uint32_t tokens : trace.tokens) {
    sum += tokens;
    EXPECT_GE(tokens, 1);
    EXPECT_LE(tokens, 32768);
  }
  // The cap takes a few per cent off the mean of 4,096; standard error about 80.
  EXPECT_NEAR(sum / 4096, 4000, 350);
}

TEST(Generator, HarshSkewIsAsHarshAsTheFamilyIsKnownToBe) {
  GeneratorOptions options;
  options.num_ranks = 16;
  options.layers = 4;
  const CountTrace trace = *GenerateCounts(options, InOrder);
  double imbalance = 0;
  for (int m = 0; m < 16; ++m) {
    for (int l = 0; l < 4; ++l) {
      std::vector<double> rank(16);
      double all = 0;
      const auto matrix = trace.loads.At(m, l);
      for (size_t i = 0; i < matrix.size(); ++i) {
        rank[i % 128 / 8] += matrix[i];
        all += matrix[i];
      }
      imbalance += *std::max_element(rank.begin(), rank.end()) * 16 / all / 64;
    }
  }
  EXPECT_GT(imbalance, 1.6);  // known: 2.0 to 2.2 over many layers
  EXPECT_LT(imbalance, 2.8);
}

TEST(Generator, DrawnIdsHaveExactlyTheHistogram) {
  const SequenceTrace trace = *GenerateSequences(Small(), InOrder);
  const std::vector<uint16_t> ids = *DrawRoutedIds(trace, 5, 1);
  ASSERT_EQ(ids.size(), 500 * 2 * 4);
  std::vector<uint32_t> counts(2 * 16);
  for (size_t row = 0; row < 500 * 2; ++row) {
    const std::set<uint16_t> distinct(ids.begin() + row * 4, ids.begin() + row * 4 + 4);
    EXPECT_EQ(distinct.size(), 4);
    for (uint16_t e : distinct) ++counts[row % 2 * 16 + e];
  }
  EXPECT_EQ(absl::MakeConstSpan(counts), trace.HistogramOf(5));
}

TEST(Generator, CountsThatNoIdsHaveAreRefused) {
  SequenceTrace trace = *GenerateSequences(Small(), InOrder);
  --trace.counts[0];
  EXPECT_THAT(std::string(DrawRoutedIds(trace, 0, 1).status().message()),
              HasSubstr("sequence \"s0\", layer 0: no ids have these counts"));
}

TEST(Generator, OptionsOutOfRangeAreNamed) {
  auto refused = [](auto change) {
    GeneratorOptions options = Small();
    change(options);
    return std::string(GenerateCounts(options, InOrder).status().message());
  };
  EXPECT_THAT(refused([](GeneratorOptions& o) { o.num_ranks = 0; }), HasSubstr("ranks"));
  EXPECT_THAT(refused([](GeneratorOptions& o) { o.top_k = 17; }), HasSubstr("top_k"));
  EXPECT_THAT(refused([](GeneratorOptions& o) { o.layer_sigma = -1; }), HasSubstr("layer sigma"));
  EXPECT_THAT(refused([](GeneratorOptions& o) { o.domain_sigma = 0.0 / 0.0; }),
              HasSubstr("domain sigma"));
  EXPECT_THAT(refused([](GeneratorOptions& o) { o.tokens_per_bin = 1; }),
              HasSubstr("tokens_per_bin"));
  EXPECT_THAT(
      refused([](GeneratorOptions& o) { o.num_ranks = o.micro_batches = o.experts = 65535; }),
      HasSubstr("more than 64 GiB"));
}

}  // namespace
}  // namespace relibra

#include "kernels/load_histogram.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/kernels/id_arrays.h"
#include "tests/kernels/kernel_test_device.h"

namespace relibra::kernel_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Shape {
  int64_t tokens;
  int64_t layers;
  int64_t top_k;
  int64_t experts;
};

struct Counted {
  std::vector<uint32_t> counts;
  IdReport report;
};

// One id at a time, in 64 bits.
Counted CountOneByOne(const std::vector<int64_t>& ids, const Shape& shape) {
  Counted expected;
  expected.counts.assign(static_cast<size_t>(shape.layers * shape.experts), 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t layer = i / static_cast<size_t>(shape.top_k) % static_cast<size_t>(shape.layers);
    if (ids[i] >= shape.experts) {
      if (expected.report.invalid++ == 0) expected.report.first_position = i;
    } else if (ids[i] >= 0) {
      ++expected.counts[layer * static_cast<size_t>(shape.experts) + static_cast<size_t>(ids[i])];
    }
  }
  return expected;
}

class LoadHistogramTest : public KernelTest {
 protected:
  void ExpectCountsOf(const Shape& shape, IdType type, const IdMix& mix, std::mt19937_64& random) {
    SCOPED_TRACE(absl::StrCat(NameOf(type), " tokens ", shape.tokens, " layers ", shape.layers,
                              " top_k ", shape.top_k, " experts ", shape.experts));
    const std::vector<int64_t> ids = RandomIds(
        static_cast<size_t>(shape.tokens * shape.layers * shape.top_k), type, mix, random);
    const Counted expected = CountOneByOne(ids, shape);
    DeviceArray<uint8_t> device_ids(Pack(ids, type));
    DeviceArray<uint32_t> counts(static_cast<size_t>(shape.layers * shape.experts));
    DeviceArray<IdReport> report(1);
    const absl::Status status = LoadHistogram(TestExecutor(),
                                              {.data = device_ids.data(),
                                               .type = type,
                                               .tokens = shape.tokens,
                                               .layers = shape.layers,
                                               .top_k = shape.top_k},
                                              shape.experts, counts.data(), report.data());
    if (OnCpu() && expected.report.invalid > 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(counts.Read(), expected.counts);
    const IdReport found = report.ReadOne();
    EXPECT_EQ(found.invalid, expected.report.invalid);
    EXPECT_EQ(found.first_position, expected.report.first_position);
  }
};

TEST_F(LoadHistogramTest, EqualsCountingOneByOneForEveryTypeAndNumberOfExperts) {
  std::mt19937_64 random(1);
  for (const IdType type : kAllIdTypes) {
    for (const int64_t experts : {8, 60, 128, 200, 256, 512}) {
      ExpectCountsOf({.tokens = 301, .layers = 5, .top_k = 8, .experts = experts}, type,
                     {.experts = experts, .not_routed = 0.1}, random);
    }
  }
}

TEST_F(LoadHistogramTest, EqualsCountingOneByOneForEveryTopK) {
  std::mt19937_64 random(2);
  for (int64_t top_k = 1; top_k <= 16; ++top_k) {
    for (const IdType type : {IdType::kU8, IdType::kI16, IdType::kI32}) {
      ExpectCountsOf({.tokens = 257, .layers = 3, .top_k = top_k, .experts = 64}, type,
                     {.experts = 64}, random);
    }
  }
}

TEST_F(LoadHistogramTest, EqualsCountingOneByOneOnRandomShapes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const Shape shape = {.tokens = draw(0, 120),
                         .layers = draw(1, 40),
                         .top_k = draw(1, 16),
                         .experts = draw(1, 512)};
    ExpectCountsOf(shape, kAllIdTypes[round % 6],
                   {.experts = shape.experts,
                    .not_routed = round % 3 * 0.2,
                    .invalid = round % 5 == 0 ? 0.05 : 0,
                    .one_expert = round % 7 == 0},
                   random);
  }
}

TEST_F(LoadHistogramTest, CountsEveryTokenOfOneExpert) {
  std::mt19937_64 random(4);
  for (const IdType type : kAllIdTypes) {
    ExpectCountsOf({.tokens = 20011, .layers = 1, .top_k = 1, .experts = 16}, type,
                   {.experts = 16, .one_expert = true}, random);
  }
}

TEST_F(LoadHistogramTest, SplitsManyLayersAndManyExpertsOverBlocks) {
  std::mt19937_64 random(5);
  ExpectCountsOf({.tokens = 3, .layers = 1500, .top_k = 7, .experts = 8}, IdType::kI16,
                 {.experts = 8}, random);
  ExpectCountsOf({.tokens = 700, .layers = 3, .top_k = 2, .experts = kMaxExperts}, IdType::kU16,
                 {.experts = kMaxExperts}, random);
  ExpectCountsOf({.tokens = 9, .layers = 61, .top_k = 64, .experts = 256}, IdType::kI64,
                 {.experts = 256, .not_routed = 0.3, .invalid = 0.01}, random);
}

TEST_F(LoadHistogramTest, WritesZerosForZeroTokens) {
  std::mt19937_64 random(6);
  ExpectCountsOf({.tokens = 0, .layers = 4, .top_k = 2, .experts = 10}, IdType::kI32,
                 {.experts = 10}, random);
}

TEST_F(LoadHistogramTest, AcceptsZeroLayers) {
  DeviceArray<IdReport> report(1);
  EXPECT_TRUE(
      LoadHistogram(TestExecutor(), {.tokens = 5, .layers = 0}, 8, nullptr, report.data()).ok());
  EXPECT_EQ(report.ReadOne().invalid, 0u);
}

TEST_F(LoadHistogramTest, NamesTheFirstIdThatIsNoExpert) {
  if (!OnCpu()) GTEST_SKIP() << "only the CPU returns it";
  // Token 1, layer 1, choice 0 is the flattened position 1 * 4 + 1 * 2 + 0 = 6.
  const std::vector<uint8_t> ids = {0, 1, 2, 3, 0, 1, 4, 9};
  std::vector<uint32_t> counts(8);
  IdReport report;
  const absl::Status status =
      LoadHistogram(Executor::Cpu(),
                    {.data = ids.data(), .type = IdType::kU8, .tokens = 2, .layers = 2, .top_k = 2},
                    4, counts.data(), &report);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ids[1][1][0] is not below 4 (2 such ids, all left out)"));
  EXPECT_THAT(counts, ElementsAre(2, 2, 0, 0, 0, 0, 1, 1));
}

TEST_F(LoadHistogramTest, NamesTheArgumentAtFault) {
  DeviceArray<uint8_t> ids(64);
  DeviceArray<uint32_t> counts(64);
  DeviceArray<IdReport> report(1);
  const auto message = [&](RoutedIds routed, int64_t experts, uint32_t* out, IdReport* found) {
    const absl::Status status = LoadHistogram(TestExecutor(), routed, experts, out, found);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const RoutedIds good = {.data = ids.data(), .type = IdType::kI32, .tokens = 2, .top_k = 2};
  RoutedIds bad = good;
  bad.tokens = -1;
  EXPECT_THAT(message(bad, 8, counts.data(), report.data()), HasSubstr("ids.tokens is -1"));
  bad = good;
  bad.top_k = 65;
  EXPECT_THAT(message(bad, 8, counts.data(), report.data()), HasSubstr("ids.top_k is 65"));
  bad = good;
  bad.top_k = 2;
  bad.tokens = int64_t{1} << 31;
  EXPECT_THAT(message(bad, 8, counts.data(), report.data()), HasSubstr("expected 0..2147483647"));
  bad = good;
  bad.data = nullptr;
  EXPECT_THAT(message(bad, 8, counts.data(), report.data()), HasSubstr("ids.data is null"));
  bad = good;
  bad.data = ids.data() + 1;
  EXPECT_THAT(message(bad, 8, counts.data(), report.data()),
              HasSubstr("ids.data is not aligned to 4 bytes"));
  EXPECT_THAT(message(good, 0, counts.data(), report.data()), HasSubstr("experts is 0"));
  EXPECT_THAT(message(good, kMaxExperts + 1, counts.data(), report.data()),
              HasSubstr("experts is 8193"));
  EXPECT_THAT(message(good, 8, nullptr, report.data()), HasSubstr("counts is null"));
  EXPECT_THAT(message(good, 8, counts.data(), nullptr), HasSubstr("report is null"));
  EXPECT_THAT(counts.Read(), Each(0xa5a5a5a5u)) << "nothing may have run";
}

}  // namespace
}  // namespace relibra::kernel_test

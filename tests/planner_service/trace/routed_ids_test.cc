#include "planner_service/trace/routed_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Id>
std::string Bytes(const std::vector<Id>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id));
}

struct Counted {
  absl::Status status;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> unrouted;
  uint64_t partly_routed_rows = 0;
};

Counted CountOnce(const RoutedIdCounter& counter, absl::string_view ids, RowOrigin origin = {}) {
  Counted counted;
  counted.counts.resize(counter.num_counted_layers() * size_t{1} * counter.layout().num_experts);
  counted.unrouted.resize(counter.num_counted_layers());
  RoutingTally tally{.counts = absl::MakeSpan(counted.counts),
                     .unrouted = absl::MakeSpan(counted.unrouted)};
  counted.status = counter.Count(ids, origin, tally);
  counted.partly_routed_rows = tally.partly_routed_rows;
  return counted;
}

RoutedIdCounter CounterOf(const RoutedIdLayout& layout) {
  absl::StatusOr<RoutedIdCounter> counter = RoutedIdCounter::Create(layout);
  EXPECT_TRUE(counter.ok()) << counter.status();
  return *std::move(counter);
}

TEST(RoutedIds, EveryIdOfEveryLayerIsCounted) {
  // The vector of peers' wire formats: token 0 has layers (1,2) (3,4), token 1 (5,6) (7,0).
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kUint8, .num_layers = 2, .top_k = 2, .num_experts = 8});
  const Counted counted = CountOnce(counter, Bytes<uint8_t>({1, 2, 3, 4, 5, 6, 7, 0}));
  ASSERT_TRUE(counted.status.ok()) << counted.status;
  EXPECT_THAT(counted.counts, ElementsAre(0, 1, 1, 0, 0, 1, 1, 0,  //
                                          1, 0, 0, 1, 1, 0, 0, 1));
  EXPECT_THAT(counted.unrouted, Each(0));
}

// Draws records of every dtype and many shapes and counts them id by id.
template <typename Id>
void CompareWithPlainCounting(IdType type, uint32_t seed) {
  std::mt19937 random(seed);
  auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  const int num_layers = draw(1, 9);
  const int top_k = draw(1, 10);
  const int num_experts = draw(top_k, 100);
  const int tokens = draw(0, 300);
  std::vector<int> rows(num_layers);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  rows.resize(draw(1, num_layers));
  std::sort(rows.begin(), rows.end());
  std::vector<uint32_t> counts(rows.size() * num_experts);
  std::vector<uint32_t> unrouted(rows.size());
  uint64_t partly = 0;
  std::vector<Id> ids(size_t{1} * tokens * num_layers * top_k);  // dense rows stay all zero
  for (int t = 0; t < tokens; ++t) {
    for (size_t l = 0; l < rows.size(); ++l) {
      std::vector<int> experts(num_experts);
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      const bool missing = std::is_signed_v<Id> && random() % 10 == 0;
      const bool dropped = std::is_signed_v<Id> && top_k > 1 && random() % 20 == 0;
      Id* row = &ids[(size_t{1} * t * num_layers + rows[l]) * top_k];
      for (int k = 0; k < top_k; ++k) {
        row[k] = static_cast<Id>(missing || (dropped && k == 0) ? -1 : experts[k]);
        if (static_cast<int64_t>(row[k]) >= 0) ++counts[l * num_experts + experts[k]];
      }
      unrouted[l] += missing ? 1 : 0;
      partly += !missing && dropped ? 1 : 0;
    }
  }
  const RoutedIdCounter counter = CounterOf({.type = type,
                                             .num_layers = num_layers,
                                             .top_k = top_k,
                                             .num_experts = num_experts,
                                             .counted_rows = rows});
  // One byte off, as ids stand in a message.
  const std::string unaligned = "x" + Bytes(ids);
  const Counted counted = CountOnce(counter, absl::string_view(unaligned).substr(1));
  ASSERT_TRUE(counted.status.ok()) << counted.status;
  EXPECT_EQ(counted.counts, counts);
  EXPECT_EQ(counted.unrouted, unrouted);
  EXPECT_EQ(counted.partly_routed_rows, partly);
}

TEST(RoutedIds, CountsOfEveryTypeAndShapeAreThoseOfPlainCounting) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    CompareWithPlainCounting<uint8_t>(IdType::kUint8, seed);
    CompareWithPlainCounting<int8_t>(IdType::kInt8, seed);
    CompareWithPlainCounting<int16_t>(IdType::kInt16, seed);
    CompareWithPlainCounting<uint16_t>(IdType::kUint16, seed);
    CompareWithPlainCounting<int32_t>(IdType::kInt32, seed);
    CompareWithPlainCounting<int64_t>(IdType::kInt64, seed);
  }
}

// One wrong id anywhere in a good record is found and its place named.
template <typename Id>
void BreakOneIdAndLookForIt(IdType type, uint32_t seed) {
  std::mt19937 random(seed);
  const int tokens = 1 + static_cast<int>(random() % 200);
  const int num_layers = 1 + static_cast<int>(random() % 6);
  const int top_k = 2 + static_cast<int>(random() % 7);
  const int num_experts = 40;
  std::vector<Id> ids(size_t{1} * tokens * num_layers * top_k);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>((i / top_k + i) % 40);
  const int token = static_cast<int>(random() % tokens);
  const int layer = static_cast<int>(random() % num_layers);
  const int slot = 1 + static_cast<int>(random() % (top_k - 1));
  Id* row = &ids[(size_t{1} * token * num_layers + layer) * top_k];
  const bool twice = random() % 2 == 0;
  const int first = static_cast<int>(random() % slot);
  row[slot] = twice ? row[first] : static_cast<Id>(num_experts + random() % 80);

  const RoutedIdCounter counter = CounterOf(
      {.type = type, .num_layers = num_layers, .top_k = top_k, .num_experts = num_experts});
  const Counted counted = CountOnce(counter, Bytes(ids), {.sequence = "q-7", .token_offset = 1000});
  EXPECT_EQ(counted.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(counted.status.message()),
      AllOf(HasSubstr("sequence \"q-7\", token " + std::to_string(1000 + token) + ", layer " +
                      std::to_string(layer) + ", slot " + std::to_string(slot) + ": "),
            HasSubstr(twice ? "in slot " + std::to_string(first) + " already"
                            : "expected a logical expert from 0 to 39, got " +
                                  std::to_string(static_cast<int>(row[slot])) +
                                  " (a physical id after EPLB?)")));
  EXPECT_THAT(counted.counts, Each(0)) << "an erroneous record must add nothing";
}

TEST(RoutedIds, OneWrongIdIsFoundWhereverItStands) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    BreakOneIdAndLookForIt<uint8_t>(IdType::kUint8, seed);
    BreakOneIdAndLookForIt<int8_t>(IdType::kInt8, seed);
    BreakOneIdAndLookForIt<int16_t>(IdType::kInt16, seed);
    BreakOneIdAndLookForIt<uint16_t>(IdType::kUint16, seed);
    BreakOneIdAndLookForIt<int32_t>(IdType::kInt32, seed);
    BreakOneIdAndLookForIt<int64_t>(IdType::kInt64, seed);
  }
}

TEST(RoutedIds, IdsThatNeedAllBitsOfTheirTypeAreErrorsNotWrapped) {
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kInt64, .num_layers = 1, .top_k = 1, .num_experts = 8});
  const Counted counted = CountOnce(counter, Bytes<int64_t>({(int64_t{1} << 32) + 3}));
  EXPECT_THAT(std::string(counted.status.message()), HasSubstr("got 4294967299"));
}

TEST(RoutedIds, ErrorsNameTheModelsOwnLayer) {
  const RoutedIdCounter counter = CounterOf({.type = IdType::kUint8,
                                             .num_layers = 3,
                                             .top_k = 1,
                                             .num_experts = 4,
                                             .counted_rows = {1, 2},
                                             .layer_ids = {31, 32}});
  // Row 0 is a dense layer: its 99 is nobody's business.
  const Counted counted = CountOnce(counter, Bytes<uint8_t>({99, 3, 4}));
  EXPECT_THAT(std::string(counted.status.message()), HasSubstr("token 0, layer 32, slot 0"));
}

TEST(RoutedIds, ARowOfZerosIsARepeatedExpertWithAHint) {
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kUint8, .num_layers = 1, .top_k = 2, .num_experts = 4});
  EXPECT_THAT(std::string(CountOnce(counter, Bytes<uint8_t>({0, 0})).status.message()),
              HasSubstr("send -1"));
}

TEST(RoutedIds, ARecordMustBeWholeTokens) {
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kInt16, .num_layers = 2, .top_k = 2, .num_experts = 4});
  EXPECT_THAT(std::string(CountOnce(counter, "1234567", {.sequence = "a"}).status.message()),
              HasSubstr("sequence \"a\", expected a multiple of 8 bytes"));
  EXPECT_TRUE(CountOnce(counter, "").status.ok());
}

TEST(RoutedIds, ATypeTooSmallForTheExpertsIsRefused) {
  EXPECT_TRUE(CheckIdType(IdType::kInt8, 128).ok());
  EXPECT_FALSE(CheckIdType(IdType::kInt8, 129).ok());
  EXPECT_TRUE(CheckIdType(IdType::kUint8, 256).ok());
  EXPECT_EQ(CheckIdType(IdType::kUint8, 257).message(),
            "ids of type uint8 hold experts up to 255, too few for 257 experts");
  EXPECT_TRUE(CheckIdType(IdType::kInt16, 32768).ok());
  EXPECT_FALSE(CheckIdType(IdType::kInt16, 32769).ok());
}

TEST(RoutedIds, LayoutsThatMakeNoSenseAreRefused) {
  const RoutedIdLayout good{.type = IdType::kUint8, .num_layers = 2, .top_k = 2, .num_experts = 8};
  auto refused = [&](auto change) {
    RoutedIdLayout layout = good;
    change(layout);
    return std::string(RoutedIdCounter::Create(layout).status().message());
  };
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.top_k = 9; }), HasSubstr("at most the 8 experts"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.num_experts = 257; }), HasSubstr("uint8"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.counted_rows = {1, 1}; }), HasSubstr("got row 1"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.counted_rows = {2}; }), HasSubstr("got row 2"));
  EXPECT_THAT(refused([](RoutedIdLayout& l) { l.layer_ids = {3}; }), HasSubstr("expected 2"));
}

TEST(RoutedIds, WarmUpRowsAreTold) {
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kInt8, .num_layers = 1, .top_k = 2, .num_experts = 100});
  // 8 of 15 tokens alike, strewn among others: over half.
  std::vector<int8_t> ids;
  for (int8_t t = 0; t < 15; ++t) {
    const bool alike = t % 2 == 0;
    ids.push_back(alike ? int8_t{5} : int8_t(20 + t));
    ids.push_back(alike ? int8_t{6} : int8_t(40 + t));
  }
  EXPECT_TRUE(counter.MostRowsIdentical(Bytes(ids)));
  ids.insert(ids.end(), {90, 91});  // 8 of 16: not over half
  EXPECT_FALSE(counter.MostRowsIdentical(Bytes(ids)));
}

TEST(RoutedIds, ShortRecordsAndUnroutedTokensAreNotTakenForWarmUp) {
  const RoutedIdCounter counter =
      CounterOf({.type = IdType::kInt8, .num_layers = 1, .top_k = 1, .num_experts = 100});
  EXPECT_FALSE(counter.MostRowsIdentical(""));
  EXPECT_FALSE(counter.MostRowsIdentical(Bytes(std::vector<int8_t>(7, 3))));
  EXPECT_TRUE(counter.MostRowsIdentical(Bytes(std::vector<int8_t>(8, 3))));
  EXPECT_FALSE(counter.MostRowsIdentical(Bytes(std::vector<int8_t>(50, -1))));
}

}  // namespace
}  // namespace relibra

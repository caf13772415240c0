#include "planner_service/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace relibra {
namespace {

using ::testing::HasSubstr;

SequenceTrace TwoSequences() {
  return {.num_experts = 2,
          .top_k = 1,
          .layer_ids = {4},
          .ids = {"a", "b"},
          .tokens = {3, 3},
          .counts = {2, 1, 4'294'967'295, 0}};
}

TEST(Trace, SequencesAreAddedUpWhereTheyArePlaced) {
  const std::vector<uint32_t> ranks = {1, 0};
  const std::vector<uint32_t> micro_batches = {0, 0};
  const absl::StatusOr<CountTrace> counts =
      CountsOf(TwoSequences(), {.num_micro_batches = 1,
                                .num_ranks = 2,
                                .source_ranks = ranks,
                                .micro_batches = micro_batches});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_THAT(counts->loads.counts(), testing::ElementsAre(4'294'967'295, 0, 2, 1));
}

TEST(Trace, WhatDoesNotFitIsNamed) {
  const std::vector<uint32_t> zeros = {0, 0};
  const std::vector<uint32_t> ones = {0, 1};
  auto refused = [&](const SequencePlaces& places) {
    return std::string(CountsOf(TwoSequences(), places).status().message());
  };
  EXPECT_THAT(refused({1, 1, zeros, zeros}),
              HasSubstr("layer 4, micro-batch 0, rank 0, expert 0: the load does not fit"));
  EXPECT_THAT(refused({1, 1, ones, zeros}),
              HasSubstr("sequence \"b\": source rank: expected 0 to 0, got 1"));
  EXPECT_THAT(refused({1, 1, zeros, ones}),
              HasSubstr("sequence \"b\": micro-batch: expected 0 to 0, got 1"));
  EXPECT_THAT(refused({1, 1, {}, zeros}), HasSubstr("for each of 2 sequences"));
  EXPECT_THAT(std::string(CountsOf(TwoSequences(), 1).status().message()),
              HasSubstr("pack them first"));
}

TEST(Trace, MissingShareCountsTokensNotPairs) {
  // 6 pairs at top-2 are 3 tokens; one more has no route.
  CountTrace trace{.loads = *Loads::FromCounts(
                       {.micro_batches = 1, .layers = 1, .sources = 1, .experts = 2}, {3, 3}),
                   .layer_ids = {0},
                   .top_k = 2,
                   .unrouted = {1}};
  EXPECT_DOUBLE_EQ(MissingShare(trace), 0.25);
  trace.unrouted.clear();
  EXPECT_EQ(MissingShare(trace), 0);
}

}  // namespace
}  // namespace relibra

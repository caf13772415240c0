#include "planner_service/core/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace relibra {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;
using ::testing::Pair;

// Every figure anew from the places, however they came about.
PackBalance BalanceByHand(const Composition& c, int ranks, const std::vector<uint32_t>& tokens) {
  PackBalance balance;
  for (int m = 0; m < c.num_micro_batches(); ++m) {
    std::vector<uint64_t> of_rank(ranks);
    std::vector<double> attention(ranks);
    for (size_t q = 0; q < tokens.size(); ++q) {
      if (c.micro_batch_of()[q] != static_cast<uint32_t>(m)) continue;
      of_rank[c.rank_of()[q]] += tokens[q];
      attention[c.rank_of()[q]] += 1.0 * tokens[q] * tokens[q];
    }
    uint64_t all = 0;
    double all_attention = 0;
    for (int r = 0; r < ranks; ++r) all += of_rank[r], all_attention += attention[r];
    balance.tokens += *std::max_element(of_rank.begin(), of_rank.end());
    balance.attention += *std::max_element(attention.begin(), attention.end());
    balance.micro_batch_tokens = std::max(balance.micro_batch_tokens, all);
    balance.micro_batch_attention = std::max(balance.micro_batch_attention, all_attention);
  }
  return balance;
}

void ExpectBalance(const PackBalance& a, const PackBalance& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.attention, b.attention);
  EXPECT_EQ(a.micro_batch_tokens, b.micro_batch_tokens);
  EXPECT_EQ(a.micro_batch_attention, b.micro_batch_attention);
}

TEST(Composition, BalanceCountsTheFullestRanksAndMicroBatches) {
  const std::vector<uint32_t> tokens = {3, 4, 5, 1};
  Composition c(2, std::vector<BinCap>(2), tokens);
  c.Place(0, 0, 0);
  c.Place(1, 0, 0);
  c.Place(2, 0, 1);
  c.Place(3, 1, 1);
  // Micro-batch 0: ranks 7 and 5 tokens, 25 and 25 squared; micro-batch 1: 0 and 1.
  ExpectBalance(
      c.Balance(),
      {.tokens = 8, .attention = 26, .micro_batch_tokens = 12, .micro_batch_attention = 50});
}

TEST(Composition, BinsAreFoundByRoom) {
  const std::vector<uint32_t> tokens = {6, 3, 4};
  Composition c(2, std::vector<BinCap>(2, BinCap{.tokens = 8}), tokens);
  c.Place(0, 0, 0);
  c.Place(1, 0, 1);
  EXPECT_THAT(c.LightestRank(2, 0), Optional(1));
  EXPECT_THAT(c.FullestBin(2), Optional(Pair(0, 1)));  // 6 + 4 is above the cap
  c.Place(2, 0, 0);
  EXPECT_FALSE(c.KeepsCaps());
  c.Remove(2);
  EXPECT_TRUE(c.KeepsCaps());
}

TEST(Composition, RanksAreDealtMoreEvenly) {
  const std::vector<uint32_t> tokens = {5, 5, 1, 1};
  Composition c(2, std::vector<BinCap>(1), tokens);
  for (size_t q = 0; q < 4; ++q) c.Place(q, 0, q / 2);  // 10 and 2
  c.DealRanks();
  EXPECT_EQ(c.Balance().tokens, 6);
  EXPECT_NE(c.rank_of()[0], c.rank_of()[1]);
}

TEST(Composition, SwapsAndWhetherTheyMayBeAgreeWithCountingAnew) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 3);
    const int micro_batches = 2 + static_cast<int>(random() % 3);
    const size_t unit_size = 1 + random() % 3;
    std::vector<uint32_t> tokens(unit_size * (2 + random() % 6));
    for (uint32_t& t : tokens) t = random() % 20;
    Composition c(ranks, std::vector<BinCap>(micro_batches, BinCap{.tokens = 30, .attention = 500}),
                  tokens);
    std::vector<PackUnit> units;
    for (size_t q = 0; q < tokens.size(); ++q) {
      if (q % unit_size == 0) units.emplace_back();
      units.back().push_back(q);
      c.Place(q, (q / unit_size) % micro_batches, random() % ranks);
    }
    const PackBalance most{.micro_batch_tokens = 60, .micro_batch_attention = 900};
    for (int i = 0; i < 30; ++i) {
      const PackUnit& a = units[random() % units.size()];
      const PackUnit& b = units[random() % units.size()];
      if (c.micro_batch_of()[a[0]] == c.micro_batch_of()[b[0]]) continue;
      const bool good_before = c.KeepsCaps() && c.Balance().micro_batch_tokens <= 60 &&
                               c.Balance().micro_batch_attention <= 900;
      const bool may = c.MaySwap(a, b, most);
      Composition swapped = c;
      swapped.Swap(a, b);
      ExpectBalance(swapped.Balance(), BalanceByHand(swapped, ranks, tokens));
      if (!good_before) continue;
      EXPECT_EQ(may, swapped.KeepsCaps() && swapped.Balance().micro_batch_tokens <= 60 &&
                         swapped.Balance().micro_batch_attention <= 900);
      if (may) c = swapped;
    }
  }
}

}  // namespace
}  // namespace relibra

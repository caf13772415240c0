#include "planner_service/core/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace relibra {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sequences of random lengths in prompt groups; a group prefers the same experts.
struct Batch {
  Topology topology;
  int micro_batches = 1;
  int layers = 1;
  int experts = 1;
  std::vector<std::string> ids;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> groups;
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> order;  // micro-batches of the order given

  PackSequences View(bool with_order) const {
    PackSequences view{.ids = ids, .tokens = tokens, .counts = counts, .prompt_groups = groups};
    if (with_order) {
      view.source_ranks = ranks;
      view.micro_batches = order;
    }
    return view;
  }
  Placement Homes() const { return LinearPlacement(topology, layers, experts); }
};

Batch RandomBatch(std::mt19937& random, int sequences_per_bin, bool equal_lengths) {
  Batch batch;
  batch.topology = {.nodes = 1 + static_cast<int>(random() % 3),
                    .gpus_per_node = 1 + static_cast<int>(random() % 3),
                    .replica_slots = 1};
  batch.micro_batches = 1 + static_cast<int>(random() % 5);
  batch.layers = 1 + static_cast<int>(random() % 4);
  batch.experts = batch.topology.num_ranks() * (1 + static_cast<int>(random() % 3));
  const int bins = batch.topology.num_ranks() * batch.micro_batches;
  std::lognormal_distribution<double> length(5, 1);
  for (int q = 0; q < bins * sequences_per_bin; ++q) {
    batch.ids.push_back("s" + std::to_string(q));
    batch.tokens.push_back(equal_lengths ? 100 : 1 + static_cast<uint32_t>(length(random)));
    batch.groups.push_back(q / 4);
    batch.ranks.push_back(q / sequences_per_bin % batch.topology.num_ranks());
    batch.order.push_back(q / sequences_per_bin / batch.topology.num_ranks());
    for (int l = 0; l < batch.layers; ++l) {
      const int favourite = static_cast<int>((q / 4 * 7 + l) % batch.experts);
      std::vector<uint32_t> row(batch.experts);
      for (uint32_t i = 0; i < batch.tokens.back() * 2; ++i) {
        ++row[random() % 3 == 0 ? favourite : random() % batch.experts];
      }
      batch.counts.insert(batch.counts.end(), row.begin(), row.end());
    }
  }
  return batch;
}

struct Sums {
  std::vector<uint64_t> bin_tokens;
  PackBalance balance;
};

Sums SumsOf(const Batch& batch, const std::vector<uint32_t>& ranks,
            const std::vector<uint32_t>& micro_batches) {
  const int num_ranks = batch.topology.num_ranks();
  Sums sums;
  sums.bin_tokens.resize(batch.micro_batches * num_ranks);
  std::vector<double> attention(sums.bin_tokens.size());
  for (size_t q = 0; q < batch.tokens.size(); ++q) {
    const size_t bin = micro_batches[q] * num_ranks + ranks[q];
    sums.bin_tokens.at(bin) += batch.tokens[q];
    attention[bin] += 1.0 * batch.tokens[q] * batch.tokens[q];
  }
  for (int m = 0; m < batch.micro_batches; ++m) {
    const auto first = sums.bin_tokens.begin() + m * num_ranks;
    const auto attention_first = attention.begin() + m * num_ranks;
    uint64_t tokens = 0;
    double squares = 0;
    for (int r = 0; r < num_ranks; ++r) tokens += first[r], squares += attention_first[r];
    sums.balance.tokens += *std::max_element(first, first + num_ranks);
    sums.balance.attention += *std::max_element(attention_first, attention_first + num_ranks);
    sums.balance.micro_batch_tokens = std::max(sums.balance.micro_batch_tokens, tokens);
    sums.balance.micro_batch_attention = std::max(sums.balance.micro_batch_attention, squares);
  }
  return sums;
}

double NodeImbalance(const Batch& batch, const Packing& packing) {
  double sum = 0;
  for (int m = 0; m < batch.micro_batches; ++m) {
    for (int l = 0; l < batch.layers; ++l) {
      std::vector<double> load(batch.topology.nodes);
      double all = 0;
      for (size_t q = 0; q < batch.tokens.size(); ++q) {
        if (packing.micro_batches[q] != static_cast<uint32_t>(m)) continue;
        for (int e = 0; e < batch.experts; ++e) {
          const uint32_t count = batch.counts[(q * batch.layers + l) * batch.experts + e];
          load[batch.topology.NodeOf(packing.homes[l][e])] += count;
          all += count;
        }
      }
      sum +=
          all == 0 ? 1 : *std::max_element(load.begin(), load.end()) * batch.topology.nodes / all;
    }
  }
  return sum / batch.micro_batches / batch.layers;
}

void ExpectHomesAreAPlacement(const Batch& batch, const Placement& homes) {
  ASSERT_EQ(homes.size(), static_cast<size_t>(batch.layers));
  for (const std::vector<int32_t>& layer : homes) {
    std::vector<int> on(batch.topology.num_ranks());
    for (int32_t rank : layer) ++on.at(rank);
    for (int count : on) EXPECT_EQ(count, batch.experts / batch.topology.num_ranks());
  }
}

TEST(Pack, EveryPackingKeepsTheCapAndIsNoWorseThanTheOrderGiven) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Batch batch = RandomBatch(random, 1 + static_cast<int>(random() % 4), seed % 3 == 0);
    const Sums before = SumsOf(batch, batch.ranks, batch.order);
    PackOptions options{.micro_batches = batch.micro_batches};
    // The tightest cap that the order given keeps, or none.
    const uint64_t fullest = *std::max_element(before.bin_tokens.begin(), before.bin_tokens.end());
    if (seed % 2 == 0) options.max_tokens = fullest;
    const absl::StatusOr<Packing> packing =
        PackStep(batch.View(true), batch.topology, batch.Homes(), options, InOrder);
    ASSERT_TRUE(packing.ok()) << packing.status();
    ASSERT_EQ(packing->micro_batches.size(), batch.tokens.size());
    ASSERT_EQ(packing->source_ranks.size(), batch.tokens.size());
    const Sums after = SumsOf(batch, packing->source_ranks, packing->micro_batches);
    for (uint64_t tokens : after.bin_tokens) EXPECT_LE(tokens, fullest);
    EXPECT_TRUE(after.balance.NoWorseThan(before.balance));
    EXPECT_EQ(packing->balance.tokens, after.balance.tokens);
    EXPECT_LE(packing->node_imbalance, packing->node_imbalance_before);
    EXPECT_NEAR(packing->node_imbalance, NodeImbalance(batch, *packing), 1e-9);
    ExpectHomesAreAPlacement(batch, packing->homes);
  }
}

TEST(Pack, PromptGroupsStayTogetherWhereAskedTo) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Batch batch = RandomBatch(random, 2, seed % 2 == 0);
    const absl::StatusOr<Packing> packing =
        PackStep(batch.View(false), batch.topology, batch.Homes(),
                 {.micro_batches = batch.micro_batches, .keep_prompt_groups = true}, InOrder);
    ASSERT_TRUE(packing.ok()) << packing.status();
    std::map<uint32_t, uint32_t> micro_batch_of_group;
    for (size_t q = 0; q < batch.tokens.size(); ++q) {
      const auto [entry, added] =
          micro_batch_of_group.try_emplace(batch.groups[q], packing->micro_batches[q]);
      EXPECT_EQ(entry->second, packing->micro_batches[q]);
      EXPECT_LT(packing->micro_batches[q], static_cast<uint32_t>(batch.micro_batches));
      EXPECT_LT(packing->source_ranks[q], static_cast<uint32_t>(batch.topology.num_ranks()));
    }
  }
}

TEST(Pack, OppositeSequencesAreMixed) {
  // Micro-batch 0 as given uses expert 0 alone, micro-batch 1 expert 1: whatever the homes, one of
  // two nodes computes all. Level is only a mixture of both with the two experts in different
  // nodes, and experts 0 and 1 start in the same.
  Batch batch;
  batch.topology = {.nodes = 2, .gpus_per_node = 2, .replica_slots = 1};
  batch.micro_batches = 2;
  batch.experts = 4;
  for (int q = 0; q < 8; ++q) {
    batch.ids.push_back(std::to_string(q));
    batch.tokens.push_back(10);
    batch.groups.push_back(q / 4);
    for (int e = 0; e < 4; ++e) batch.counts.push_back(e == q / 4 ? 10 : 0);
    batch.ranks.push_back(q % 4);
    batch.order.push_back(q / 4);
  }
  const absl::StatusOr<Packing> packing =
      PackStep(batch.View(true), batch.topology, batch.Homes(), {.micro_batches = 2}, InOrder);
  ASSERT_TRUE(packing.ok()) << packing.status();
  EXPECT_DOUBLE_EQ(packing->node_imbalance_before, 2);
  EXPECT_DOUBLE_EQ(packing->node_imbalance, 1);
}

TEST(Pack, TheSameInputGivesTheSamePackingWhateverTheThreads) {
  std::mt19937 random(5);
  const Batch batch = RandomBatch(random, 6, false);
  auto backwards = [](int n, absl::FunctionRef<void(int)> task) {
    for (int i = n; i-- > 0;) task(i);
  };
  const PackOptions options{.micro_batches = batch.micro_batches};
  const absl::StatusOr<Packing> a =
      PackStep(batch.View(true), batch.topology, batch.Homes(), options, InOrder);
  const absl::StatusOr<Packing> b =
      PackStep(batch.View(true), batch.topology, batch.Homes(), options, backwards);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->micro_batches, b->micro_batches);
  EXPECT_EQ(a->source_ranks, b->source_ranks);
  EXPECT_EQ(a->homes, b->homes);
}

TEST(Pack, BinsThatOnlyTightPackingFillsAreFilled) {
  // 6 + 4, 5 + 5 and 4 + 3 + 3 fill three ranks of 10 exactly. Dealt longest first to the lightest
  // rank, the last 3 finds none: 6 + 3, 5 + 4, 5 + 4.
  Batch batch;
  batch.topology = {.nodes = 1, .gpus_per_node = 3, .replica_slots = 0};
  batch.experts = 3;
  batch.tokens = {6, 5, 5, 4, 4, 3, 3};
  for (size_t q = 0; q < batch.tokens.size(); ++q) {
    batch.ids.push_back(std::to_string(q));
    batch.groups.push_back(q);
    batch.counts.insert(batch.counts.end(), {1, 1, 1});
  }
  const absl::StatusOr<Packing> packing =
      PackStep(batch.View(false), batch.topology, batch.Homes(), {.max_tokens = 10}, InOrder);
  ASSERT_TRUE(packing.ok()) << packing.status();
  for (uint64_t tokens : SumsOf(batch, packing->source_ranks, packing->micro_batches).bin_tokens) {
    EXPECT_EQ(tokens, 10);
  }
}

TEST(Pack, ASequenceThatCannotFitIsNamed) {
  std::mt19937 random(1);
  Batch batch = RandomBatch(random, 2, true);
  batch.tokens[1] = 5000;
  const PackOptions options{.micro_batches = batch.micro_batches, .max_tokens = 4999};
  EXPECT_THAT(
      std::string(PackStep(batch.View(false), batch.topology, batch.Homes(), options, InOrder)
                      .status()
                      .message()),
      HasSubstr("sequence \"s1\" of 5000 tokens cannot fit: a rank may have at most 4999"));
  batch.tokens.assign(batch.tokens.size(), 3000);
  const absl::Status status =
      PackStep(batch.View(false), batch.topology, batch.Homes(), options, InOrder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("sequence \"s"), HasSubstr("of 3000 tokens cannot fit")));
}

TEST(Pack, HomesThatAreNoPlacementAreRefused) {
  std::mt19937 random(3);
  const Batch batch = RandomBatch(random, 1, true);
  ASSERT_GT(batch.topology.num_ranks(), 1);
  auto refused = [&](auto change) {
    Placement homes = batch.Homes();
    change(homes);
    return std::string(PackStep(batch.View(true), batch.topology, homes,
                                {.micro_batches = batch.micro_batches}, InOrder)
                           .status()
                           .message());
  };
  EXPECT_THAT(refused([](Placement& p) { p.clear(); }), HasSubstr("at least 1 layer"));
  EXPECT_THAT(refused([](Placement& p) { p[0][0] = -1; }), HasSubstr("layer 0, expert 0: rank -1"));
  EXPECT_THAT(refused([](Placement& p) { p[0].back() = 0; }), HasSubstr("on every rank"));
}

TEST(Pack, SizesThatDoNotFitOneAnotherAreRefused) {
  std::mt19937 random(2);
  const Batch good = RandomBatch(random, 2, true);
  auto refused = [&](auto change) {
    Batch batch = good;
    change(batch);
    return std::string(PackStep(batch.View(true), batch.topology, good.Homes(),
                                {.micro_batches = batch.micro_batches}, InOrder)
                           .status()
                           .message());
  };
  EXPECT_THAT(refused([](Batch& b) { b.tokens.clear(); }), HasSubstr("expected at least 1"));
  EXPECT_THAT(refused([](Batch& b) { b.counts.pop_back(); }), HasSubstr("expected ids, counts"));
  EXPECT_THAT(refused([](Batch& b) { b.ids.pop_back(); }), HasSubstr("expected ids, counts"));
  EXPECT_THAT(refused([](Batch& b) { b.groups.pop_back(); }), HasSubstr("prompt groups"));
  EXPECT_THAT(refused([](Batch& b) { b.ranks.pop_back(); }), HasSubstr("the order given"));
  EXPECT_THAT(refused([](Batch& b) { b.ranks[0] = 99; }), HasSubstr("sequence \"s0\": rank 99"));
  EXPECT_THAT(refused([](Batch& b) { b.order[1] = 99; }), HasSubstr("micro-batch 99"));
  EXPECT_THAT(refused([](Batch& b) { b.micro_batches = 0; }), HasSubstr("micro_batches"));
  EXPECT_THAT(
      refused([](Batch& b) { b.counts[0] = b.counts[b.layers * b.experts] = 3'000'000'000; }),
      HasSubstr("layer 0, expert 0: the load of all sequences does not fit"));
}

}  // namespace
}  // namespace relibra

// Synthetic batches: routing as RL training sees it, without a model.
//
// The family kRl ("--family rl --skew a/b/c") draws, for every layer l,
//   popularity[l][e]    lognormal(0, a), one for each expert,
//   taste[l][d][e]      lognormal(0, b), for each of `domains` domains,
//   whim[l][q][e]       lognormal(0, c), for each sequence,
// and sequence q of domain d sends to expert e the share popularity x taste x whim of its (token,
// choice) pairs, scaled to a sum of 1 and with no share above 1 / top_k (no token has an expert
// twice): what a cap cuts off goes to the others in proportion. Shares become whole counts by
// cumulative rounding (expert e gets the difference of the rounded cumulative shares), so every
// sequence's counts add up to tokens x top_k and each is within 1 of its share.
//
// Sequences stand in the order in which rollouts hand them over: `sequences_per_bin` for rank 0 of
// micro-batch 0, then rank 1 … then micro-batch 1; groups of `group_size` neighbours come of one
// prompt and share its domain, drawn evenly. All have tokens_per_bin / sequences_per_bin tokens or,
// with length_sigma above 0, lognormal lengths of mean tokens_per_bin / sequences_per_bin, cut off
// at max_tokens.
//
// The same options give the same trace on every machine, whatever the number of threads.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_GENERATOR_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/core/planner.h"
#include "planner_service/trace/trace.h"

namespace relibra {

enum class TraceFamily {
  kRl,
  kUniform,  // every expert the same share
  kOneHot,   // expert l % E of layer l gets 1 / top_k, the others the same share
};

struct GeneratorOptions {
  TraceFamily family = TraceFamily::kRl;
  int num_ranks = 16;
  int micro_batches = 16;
  int layers = 6;
  int experts = 128;
  int top_k = 8;
  double layer_sigma = 1.0;     // a
  double domain_sigma = 0.8;    // b
  double sequence_sigma = 0.5;  // c
  int domains = 32;
  int sequences_per_bin = 2;  // sequences a rank and micro-batch
  int group_size = 8;         // sequences of one prompt
  uint32_t tokens_per_bin = 8192;
  double length_sigma = 0;      // 0: equal lengths
  uint32_t max_tokens = 32768;  // of one sequence, where lengths differ
  uint64_t seed = 0;
  // Which batch of the job: every batch has its own sequences, of the same popularity and tastes.
  uint64_t batch = 0;
};

// num_ranks x micro_batches x sequences_per_bin sequences with prompt groups and places.
// INVALID_ARGUMENT naming the option that is out of range (sigmas are 0 to 5), RESOURCE_EXHAUSTED
// when the counts would take more than 64 GiB. Threads come from parallel_for.
absl::StatusOr<SequenceTrace> GenerateSequences(const GeneratorOptions& options,
                                                ParallelFor parallel_for);

// The counts of the same batch, without keeping every sequence's histogram in memory.
absl::StatusOr<CountTrace> GenerateCounts(const GeneratorOptions& options,
                                          ParallelFor parallel_for);

// Ids [tokens, layers, top_k] that have exactly the histogram of sequence q, the tokens in random
// order, no expert twice in a row. INVALID_ARGUMENT when there are none: a layer's counts must add
// up to tokens x top_k, none above tokens, and top_k be known.
absl::StatusOr<std::vector<uint16_t>> DrawRoutedIds(const SequenceTrace& trace, size_t q,
                                                    uint64_t seed);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_GENERATOR_H_

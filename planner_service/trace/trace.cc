#include "planner_service/trace/trace.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckPlaces(const SequenceTrace& sequences, const SequencePlaces& places) {
  const size_t count = sequences.num_sequences();
  if (places.source_ranks.size() != count || places.micro_batches.size() != count) {
    return Invalid("expected a rank and a micro-batch for each of ", count, " sequences, got ",
                   places.source_ranks.size(), " and ", places.micro_batches.size());
  }
  for (size_t q = 0; q < count; ++q) {
    if (places.source_ranks[q] >= static_cast<uint32_t>(places.num_ranks)) {
      return Invalid("sequence \"", sequences.ids[q], "\": source rank: expected 0 to ",
                     places.num_ranks - 1, ", got ", places.source_ranks[q]);
    }
    if (places.micro_batches[q] >= static_cast<uint32_t>(places.num_micro_batches)) {
      return Invalid("sequence \"", sequences.ids[q], "\": micro-batch: expected 0 to ",
                     places.num_micro_batches - 1, ", got ", places.micro_batches[q]);
    }
  }
  return absl::OkStatus();
}

// Adds `more` to `sums`; the index of the first sum that no longer fits into 32 bits, or -1.
ptrdiff_t AddChecked(absl::Span<const uint32_t> more, absl::Span<uint32_t> sums) {
  uint32_t wrapped = 0;
  for (size_t e = 0; e < sums.size(); ++e) {
    sums[e] += more[e];
    wrapped |= sums[e] < more[e] ? 1 : 0;
  }
  if (wrapped == 0) return -1;
  for (size_t e = 0; e < sums.size(); ++e) {
    if (sums[e] < more[e]) return static_cast<ptrdiff_t>(e);
  }
  return -1;
}

}  // namespace

absl::StatusOr<CountTrace> CountsOf(const SequenceTrace& sequences, const SequencePlaces& places) {
  if (absl::Status status = CheckPlaces(sequences, places); !status.ok()) return status;
  const int num_layers = static_cast<int>(sequences.num_layers());
  const int num_experts = sequences.num_experts;
  absl::StatusOr<Loads> loads = Loads::Create({.micro_batches = places.num_micro_batches,
                                               .layers = num_layers,
                                               .sources = places.num_ranks,
                                               .experts = num_experts});
  if (!loads.ok()) return loads.status();
  CountTrace trace{
      .loads = *std::move(loads), .layer_ids = sequences.layer_ids, .top_k = sequences.top_k};
  if (!sequences.unrouted.empty()) {
    trace.unrouted.resize(size_t{1} * places.num_micro_batches * num_layers * places.num_ranks);
  }
  for (size_t q = 0; q < sequences.num_sequences(); ++q) {
    const uint32_t m = places.micro_batches[q];
    const uint32_t rank = places.source_ranks[q];
    const absl::Span<const uint32_t> histogram = sequences.HistogramOf(q);
    for (int l = 0; l < num_layers; ++l) {
      absl::Span<uint32_t> row = trace.loads.Mutable(static_cast<int>(m), l)
                                     .subspan(size_t{1} * rank * num_experts, num_experts);
      const ptrdiff_t overflow =
          AddChecked(histogram.subspan(size_t{1} * l * num_experts, num_experts), row);
      if (overflow >= 0) {
        return Invalid("layer ", sequences.layer_ids[l], ", micro-batch ", m, ", rank ", rank,
                       ", expert ", overflow, ": the load does not fit into 32 bits");
      }
      if (!sequences.unrouted.empty()) {
        const absl::Span<const uint32_t> more =
            absl::MakeConstSpan(sequences.unrouted).subspan(q * num_layers + l, 1);
        const size_t place = (size_t{1} * m * num_layers + l) * places.num_ranks + rank;
        if (AddChecked(more, absl::MakeSpan(trace.unrouted).subspan(place, 1)) >= 0) {
          return Invalid("layer ", sequences.layer_ids[l], ", micro-batch ", m, ", rank ", rank,
                         ": the tokens without a route do not fit into 32 bits");
        }
      }
    }
  }
  return trace;
}

absl::StatusOr<CountTrace> CountsOf(const SequenceTrace& sequences, int num_ranks) {
  if (sequences.source_ranks.empty()) {
    return Invalid("the trace says neither rank nor micro-batch of its sequences: pack them first");
  }
  const uint32_t last_rank =
      *std::max_element(sequences.source_ranks.begin(), sequences.source_ranks.end());
  const uint32_t last_micro_batch =
      *std::max_element(sequences.micro_batches.begin(), sequences.micro_batches.end());
  constexpr uint32_t kMost = std::numeric_limits<int>::max() - 1;
  return CountsOf(
      sequences,
      {.num_micro_batches = static_cast<int>(std::min(last_micro_batch, kMost)) + 1,
       .num_ranks = num_ranks > 0 ? num_ranks : static_cast<int>(std::min(last_rank, kMost)) + 1,
       .source_ranks = sequences.source_ranks,
       .micro_batches = sequences.micro_batches});
}

double MissingShare(const CountTrace& trace) {
  if (trace.unrouted.empty() || trace.top_k == 0) return 0;
  const LoadShape& shape = trace.loads.shape();
  double missing = 0;
  double routed = 0;
  for (int l = 0; l < shape.layers; ++l) {
    uint64_t pairs = 0;
    uint64_t unrouted = 0;
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (uint32_t count : trace.loads.At(m, l)) pairs += count;
      const size_t row = (size_t{1} * m * shape.layers + l) * shape.sources;
      for (int s = 0; s < shape.sources; ++s) unrouted += trace.unrouted[row + s];
    }
    if (pairs == 0) continue;
    routed += static_cast<double>(pairs) / trace.top_k;
    missing += static_cast<double>(unrouted);
  }
  return missing == 0 ? 0 : missing / (missing + routed);
}

}  // namespace relibra

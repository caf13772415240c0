// A recorded batch: who routed how many tokens to which expert.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_TRACE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner_service/core/loads.h"

namespace relibra {

// A batch whose micro-batches and source ranks are settled.
struct CountTrace {
  Loads loads;
  std::vector<uint32_t> layer_ids = {};  // [L], the model's own layer numbers, ascending
  int top_k = 0;                         // 0 where the record does not say
  // [M][L][S], tokens whose route was not recorded: they are in no count. Empty: none.
  std::vector<uint32_t> unrouted = {};
};

// Sequences, each with its expert histogram.
struct SequenceTrace {
  int num_experts = 0;
  int top_k = 0;                         // 0 where the record does not say
  std::vector<uint32_t> layer_ids = {};  // [L]
  std::vector<std::string> ids = {};     // [Q]
  // [Q], tokens (recorded rows, with or without a route).
  std::vector<uint32_t> tokens = {};
  std::vector<uint32_t> counts = {};    // [Q][L][E], (token, choice) pairs
  std::vector<uint32_t> unrouted = {};  // [Q][L], tokens without a route; empty: none
  // [Q], numbers of the prompts that the sequences were sampled from; empty: not known.
  std::vector<uint32_t> prompt_groups = {};
  // [Q], where each is trained, in the order given. Both are empty where the planner is to choose.
  std::vector<uint32_t> source_ranks = {};
  std::vector<uint32_t> micro_batches = {};

  size_t num_sequences() const { return tokens.size(); }
  size_t num_layers() const { return layer_ids.size(); }
  // [L][E] of sequence q.
  absl::Span<const uint32_t> HistogramOf(size_t q) const {
    const size_t size = num_layers() * num_experts;
    return absl::MakeConstSpan(counts).subspan(q * size, size);
  }
};

struct Trace {
  std::variant<CountTrace, SequenceTrace> routing;
  // Oddities that were accepted, each a line for people: warm-up rows, partly routed rows …
  std::vector<std::string> warnings = {};
};

// Where each sequence of a trace is trained.
struct SequencePlaces {
  int num_micro_batches = 0;
  int num_ranks = 0;
  absl::Span<const uint32_t> source_ranks;   // [Q]
  absl::Span<const uint32_t> micro_batches;  // [Q]
};

// The loads of the sequences so placed. INVALID_ARGUMENT naming the sequence when a place is out of
// range, or the layer, micro-batch, rank and expert when a load overflows 32 bits.
absl::StatusOr<CountTrace> CountsOf(const SequenceTrace& sequences, const SequencePlaces& places);

// The same with the trace's own places: as many micro-batches as they name, num_ranks ranks (0: as
// many as they name). INVALID_ARGUMENT when the trace has none.
absl::StatusOr<CountTrace> CountsOf(const SequenceTrace& sequences, int num_ranks);

// Tokens without a recorded route / all tokens, over all layers that have any route (a layer
// without is a dense one). 0 where nothing is missing or top_k is not known.
double MissingShare(const CountTrace& trace);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_TRACE_H_

// Traces in files. The forms are told apart by their content:
//
//   .npz, counts     loads integer [M, L, S, E]; optional layer_ids [L] (default 0..L-1),
//                    unrouted_tokens [M, L, S] and scalar top_k
//   .npz, sequences  routed_experts integer [T, L, K], sequence_offsets [Q+1] (sequence q has rows
//                    offsets[q]:offsets[q+1]), scalar num_experts; optional sequence_ids [Q] (text
//                    or integers), prompt_groups [Q], sequence_rank and sequence_micro_batch [Q]
//   .npz, sequences  sequence_counts integer [Q, L, E] and sequence_tokens [Q] in place of
//     counted        routed_experts, sequence_offsets and num_experts; optional scalar top_k and
//                    unrouted_tokens [Q, L]
//   .npz, raw        routed_experts integer [T, L, K], token_rank [T], token_micro_batch [T],
//   scalar
//                    num_experts
//   .json, counts    {"num_experts": E, "loads": [M][L][S][E], "layer_ids": [...]}
//
// layer_ids may stand in every form. In routed_experts an id below 0 is "not routed"; the other
// rules for ids are routed_ids.h's. A layer in which no token of the whole file is routed is a
// dense layer: it stays, with loads of 0, and its tokens are not missing. Arrays of other names in
// an .npz are ignored with a warning, other fields of a .json silently.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_TRACE_FILE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_TRACE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner_service/trace/trace.h"

namespace relibra {

struct TraceReadOptions {
  // Source ranks of the topology. Raw traces that name fewer get the others without tokens; one
  // that names more is an error. 0: as many as the trace names.
  int num_ranks = 0;
  // Forms with routed_experts only: the MoE layers by number (see layer_ids); rows of other layers
  // are skipped, whatever they hold. Empty: all layers are MoE layers.
  std::vector<uint32_t> moe_layers = {};
  // Most bytes that an archive's arrays, or the loads made of them, may take.
  uint64_t max_bytes = uint64_t{16} << 30;
};

// INVALID_ARGUMENT, starting with `name` (the file) and naming array or field, index and what was
// expected; RESOURCE_EXHAUSTED above max_bytes.
absl::StatusOr<Trace> ParseTrace(absl::string_view bytes, absl::string_view name,
                                 const TraceReadOptions& options);
absl::StatusOr<Trace> ReadTraceFile(const std::string& path, const TraceReadOptions& options);

// Writes counts as .npz or, where the path ends in ".json", as JSON (which has no place for tokens
// without a route); sequences in the counted form, as .npz only.
absl::Status WriteTraceFile(const Trace& trace, const std::string& path);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_TRACE_FILE_H_

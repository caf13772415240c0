// What the .npz forms of traces have in common, and the forms made of routed ids (see
// trace_file.h).
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_NPZ_SEQUENCES_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_NPZ_SEQUENCES_H_

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner_service/trace/npz_fields.h"
#include "planner_service/trace/trace.h"
#include "planner_service/trace/trace_file.h"

namespace relibra {

// RESOURCE_EXHAUSTED when an array of 32-bit counts of these dimensions is above options.max_bytes.
absl::Status CheckMemory(std::initializer_list<uint64_t> dimensions, const NpzFields& fields,
                         const TraceReadOptions& options);

// Fills in ids, prompt groups and places of a trace whose tokens, layers and experts are known, and
// checks that the loads which the places make fit into memory and into options.num_ranks.
absl::Status ReadSequenceFields(const NpzFields& fields, const TraceReadOptions& options,
                                SequenceTrace& trace);

// The form with routed_experts and sequence_offsets.
absl::StatusOr<Trace> ReadSequences(const NpzFields& fields, const TraceReadOptions& options);

// The form with routed_experts, token_rank and token_micro_batch.
absl::StatusOr<Trace> ReadRawTokens(const NpzFields& fields, const TraceReadOptions& options);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_NPZ_SEQUENCES_H_

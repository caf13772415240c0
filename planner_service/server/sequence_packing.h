// Proposes a composition for the sequences of a step from their records.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_SEQUENCE_PACKING_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_SEQUENCE_PACKING_H_

#include "absl/status/statusor.h"
#include "planner_service/server/job_registry.h"
#include "planner_service/server/worker_pool.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// What PackSequences answers; see planner_service/core/pack.h. The order given, with which the
// answer is compared, is the request's sequence_ids (all sequences by id where there are none) cut
// into num_micro_batches equal runs and dealt round the ranks. Tokens without a route weigh
// nothing.
//
// The step is not sealed. INVALID_ARGUMENT for a bad field, NOT_FOUND for an unknown step,
// FAILED_PRECONDITION for sequences that have no records or do not fit, RESOURCE_EXHAUSTED over a
// quota, UNIMPLEMENTED for a job of several data-parallel indices: which index trains a sequence is
// the trainer's choice. For a thread of `pool`.
absl::StatusOr<v1::PackSequencesResponse> ProposeComposition(
    JobState& job, const v1::PackSequencesRequest& request, WorkerPool& pool);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_SEQUENCE_PACKING_H_

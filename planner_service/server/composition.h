// From "these sequences in these micro-batches on these ranks" to the loads of an EP group.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_COMPOSITION_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_COMPOSITION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner_service/core/loads.h"
#include "planner_service/server/job.h"
#include "planner_service/server/step_records.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

struct GroupLoads {
  Loads loads;
  double missing_share = 0;  // of the group's (token, layer) pairs, those without a route
};

// Checks what can be checked without records: at least one micro-batch, every sequence once, ranks
// and micro-batches and data-parallel indices in range. INVALID_ARGUMENT naming the entry.
absl::Status CheckComposition(const Job& job, const v1::Composition& composition);

// The loads of one group of the job (an index into job.groups). Of a checked composition it takes
// the sequences of the group's data-parallel index, of their histograms the group's layers.
//
// A token without a route (a gap, a row below zero, a missing tail; not the last token of a
// sequence, which never has one) counts top_k pairs, dealt out in the proportions of the layer's
// recorded routes of this composition, whole pairs by largest remainder, ties to the lowest expert.
//
// FAILED_PRECONDITION when sequences have no records (how many, the first ids) or more than the
// job's max_missing_share is without a route; INVALID_ARGUMENT when a count overflows 32 bits.
absl::StatusOr<GroupLoads> MakeGroupLoads(const Job& job, int group,
                                          const v1::Composition& composition,
                                          const StepRecords::SequenceMap& sequences);

// The shape of a group's loads.
LoadShape GroupLoadShape(const Job& job, int group, int num_micro_batches);

// Bytes that loads of a shape take; at most 2^60.
int64_t LoadBytes(const LoadShape& shape);

// Takes counts given outright, all entries in one message. INVALID_ARGUMENT naming layer (the
// model's own number), micro-batch and what is expected.
absl::StatusOr<Loads> LoadsFromCounts(const Job& job, int group, const v1::LoadCounts& counts);

// Copies the entries of one message of a stream of LoadCounts into `loads` of the same shape.
// next_entry: where the stream stands; moved on. INVALID_ARGUMENT as above, and when first_entry is
// not next_entry.
absl::Status CopyEntries(const Job& job, int group, const v1::LoadCounts& counts, Loads& loads,
                         int64_t& next_entry);

// Checks that a LoadCounts message has the group's shape and at least one micro-batch.
absl::Status CheckCountsShape(const Job& job, int group, const v1::LoadCounts& counts);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_COMPOSITION_H_

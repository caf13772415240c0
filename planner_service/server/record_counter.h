// Turns one routing record, as it came over the wire, into what a step keeps of it.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/server/job.h"
#include "relibra/v1/routing.pb.h"

namespace relibra::server {

// Part of a record's histogram.
struct RouteCounts {
  std::vector<uint32_t> counts;    // [MoE layers, experts], (token, choice) pairs
  std::vector<uint32_t> unrouted;  // [MoE layers], tokens without a recorded route
};

struct CountedRecord {
  // Whose rows these are; borrowed, it must outlive this.
  const v1::RoutingRecord* record = nullptr;
  uint32_t num_tokens = 0;
  RouteCounts routes;
  // Ids: a hash of each row as it came, by which an overlap is compared. Empty for counts.
  std::vector<uint64_t> row_hashes;
  // Counts: a hash of the whole histogram.
  uint64_t counts_hash = 0;
  // Something odd that was accepted all the same; empty mostly.
  std::string warning;

  bool has_ids() const { return record->has_ids(); }
};

// Checks every field of the record against the job and counts its rows. INVALID_ARGUMENT naming
// sequence, token, layer (the model's own number) and choice. O(bytes of the record). Thread-safe.
absl::StatusOr<CountedRecord> CountRecord(const Job& job, const v1::RoutingRecord& record);

// Counts rows [first_row, first_row + num_rows) alone of a record of ids that CountRecord took.
RouteCounts CountRows(const Job& job, const v1::RoutingRecord& record, uint32_t first_row,
                      uint32_t num_rows);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_

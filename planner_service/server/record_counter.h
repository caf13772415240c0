// Turns routing records, as they came over the wire, into what a step keeps of them.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/server/job.h"
#include "planner_service/trace/routed_ids.h"
#include "relibra/v1/routing.pb.h"

namespace relibra::server {

// A histogram of some rows.
struct RouteCounts {
  std::vector<uint32_t> counts;    // [MoE layers, experts], (token, choice) pairs
  std::vector<uint32_t> unrouted;  // [MoE layers], tokens without a recorded route
};

// A record that was found good. Borrows the record and the RecordCounter it came from.
struct CountedRecord {
  const v1::RoutingRecord* record = nullptr;
  const RoutedIdCounter* counter = nullptr;  // of its ids; null for counts
  uint32_t num_tokens = 0;
  RouteCounts routes;
  // Ids: a hash of each row as it came, by which an overlap is compared. Empty for counts.
  std::vector<uint64_t> row_hashes;
  // Counts: a hash of the whole histogram.
  uint64_t counts_hash = 0;
  // Something odd that was accepted all the same; empty mostly.
  std::string warning;

  bool has_ids() const { return counter != nullptr; }
  // Counts rows [first_row, first_row + num_rows) alone; of a record of ids.
  RouteCounts CountRows(uint32_t first_row, uint32_t num_rows) const;
};

// Owned by one stream; used by one thread at a time.
class RecordCounter {
 public:
  explicit RecordCounter(std::shared_ptr<const Job> job) : job_(std::move(job)) {}

  const Job& job() const { return *job_; }

  // Checks every field of the record against the job and counts its rows. INVALID_ARGUMENT naming
  // sequence, token, layer (the model's own number) and choice. O(bytes of the record).
  absl::StatusOr<CountedRecord> Count(const v1::RoutingRecord& record);

 private:
  absl::Status CountIds(CountedRecord& counted);
  absl::StatusOr<const RoutedIdCounter*> CounterOf(v1::IdType type);

  const std::shared_ptr<const Job> job_;
  std::map<v1::IdType, RoutedIdCounter> counters_;  // made when a type is seen first
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RECORD_COUNTER_H_

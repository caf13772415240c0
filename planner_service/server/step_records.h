// The routing records of one step: a histogram a sequence, never the ids themselves.
//
// What is kept of a sequence is its counts by (layer, expert) and, for every row that came as ids,
// a 64-bit hash of the row. By those hashes a piece that arrives twice is counted once, and a piece
// that overlaps an earlier one must agree with it row by row. A row costs 8 bytes where its ids
// would cost hundreds (384 for 48 layers of top-8). Two different rows pass for equal with
// probability 2^-64.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_STEP_RECORDS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_STEP_RECORDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "planner_service/server/job.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/record_counter.h"

namespace relibra::server {

// What is known of one sequence.
struct SequenceRoutes {
  // Rows that came as one stretch and do not overlap any other stretch of the sequence.
  struct Stretch {
    uint32_t num_tokens = 0;
    bool has_ids = false;
    std::vector<uint64_t> row_hashes;  // [num_tokens] for ids
    uint64_t counts_hash = 0;          // for counts
  };

  std::map<uint32_t, Stretch> stretches;  // by token offset
  std::vector<uint32_t> counts;           // [MoE layers, experts]
  std::vector<uint32_t> unrouted;         // [MoE layers], tokens that came without a route
  uint32_t sequence_tokens = 0;           // 0: not told
  std::string prompt_group;
  v1::IdType id_type = v1::ID_TYPE_UNSPECIFIED;  // of its first piece of ids

  // Tokens that came.
  uint64_t covered() const;
  // Tokens that should have come: up to the last one seen, or all but the last of
  // `sequence_tokens`, whichever is more.
  uint64_t expected() const;
};

struct AddedRecords {
  uint64_t accepted = 0;
  uint64_t repeated = 0;
};

// Any thread may call.
class StepRecords {
 public:
  StepRecords(std::shared_ptr<const Job> job, std::shared_ptr<MemoryAccount> account)
      : job_(std::move(job)), account_(std::move(account)) {}

  // Adds all records or, on an error, none. A record whose rows are all known already is a retry
  // and changes nothing, even in a sealed step. INVALID_ARGUMENT for an overlap that disagrees;
  // FAILED_PRECONDITION for anything new in a sealed step; RESOURCE_EXHAUSTED over a quota.
  absl::StatusOr<AddedRecords> Add(absl::Span<const CountedRecord> records);

  // Lets `read` look at the sequences while nothing is added, and if it returns OK seals the step
  // against new records. by: the pass that does, for the message of a refusal.
  using SequenceMap = absl::node_hash_map<std::string, SequenceRoutes>;
  absl::Status ReadAndSeal(absl::string_view by,
                           absl::FunctionRef<absl::Status(const SequenceMap&)> read);
  // Lets `read` look at the sequences while nothing is added.
  absl::Status Read(absl::FunctionRef<absl::Status(const SequenceMap&)> read) const;
  // Takes a seal back, after a pass that could not be planned.
  void Unseal();

  struct Totals {
    uint64_t sequences = 0;
    uint64_t tokens = 0;
    absl::Time last_record = absl::InfinitePast();
  };
  Totals totals() const;

 private:
  // What one record did, to undo it.
  struct Change {
    std::string sequence_id;
    bool is_new = false;            // the sequence itself
    std::vector<uint32_t> offsets;  // stretches added
    RouteCounts routes;             // counts added
    uint64_t num_tokens = 0;
    uint32_t sequence_tokens_before = 0;
    std::string prompt_group_before;
    v1::IdType id_type_before = v1::ID_TYPE_UNSPECIFIED;
  };

  absl::Status AddOne(const CountedRecord& record, MemoryCharge& charge,
                      std::vector<Change>& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(const CountedRecord& record, absl::Span<const std::pair<uint32_t, uint32_t>> gaps,
             SequenceRoutes& sequence, Change& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Undo(const Change& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Job> job_;
  const std::shared_ptr<MemoryAccount> account_;

  mutable absl::Mutex mutex_;
  SequenceMap sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_record_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string sealed_by_ ABSL_GUARDED_BY(mutex_);  // empty: not sealed
  MemoryCharge charge_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_STEP_RECORDS_H_

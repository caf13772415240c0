// The all-to-all of one (layer, micro-batch): rows to the physical slots that serve them, and back.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_TOKEN_EXCHANGE_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_TOKEN_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/dispatch_map.h"
#include "worker_agent/group_shape.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent::selftest {

// Not thread-safe.
class TokenExchange {
 public:
  // Tells every rank how many rows each of its slots will get from here (map.counts), and learns
  // the same. Every rank calls it at the same point; `sequence` is its number, the same on all.
  static absl::StatusOr<TokenExchange> Create(transport::Transport& transport,
                                              const GroupShape& shape, const DispatchMap& map,
                                              int hidden, uint64_t sequence, absl::Time deadline);

  // rows [map.rows(), hidden], in the order of the map -> the rows that this rank serves, grouped
  // by slot, within a slot by source rank: [served(), hidden].
  absl::StatusOr<std::vector<float>> Dispatch(const std::vector<float>& rows, absl::Time deadline);
  // The way back.
  absl::StatusOr<std::vector<float>> Return(const std::vector<float>& served, absl::Time deadline);

  // Rows that slot s of this rank serves, and the first of them among served rows.
  int64_t SlotRows(int slot) const { return slot_begin_[slot + 1] - slot_begin_[slot]; }
  int64_t SlotBegin(int slot) const { return slot_begin_[slot]; }
  int64_t served() const { return slot_begin_.back(); }

 private:
  TokenExchange(transport::Transport& transport, int slots, int hidden, uint64_t sequence)
      : transport_(&transport), slots_(slots), hidden_(hidden), sequence_(sequence) {}

  // Copies between the order of arrival (by source, then slot) and the order of service (by slot,
  // then source).
  void Regroup(const std::vector<float>& from, std::vector<float>& to, bool to_service) const;

  transport::Transport* transport_;
  int slots_;
  int hidden_;
  uint64_t sequence_;
  uint64_t calls_ = 0;
  std::vector<int64_t> send_begin_;  // [ranks + 1], in rows
  std::vector<int64_t> recv_begin_;  // [ranks + 1], in rows
  std::vector<int64_t> arriving_;    // [ranks, slots], rows
  std::vector<int64_t> slot_begin_;  // [slots + 1]
};

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_TOKEN_EXCHANGE_H_

// Which rank, and which of its home slots, holds each expert.
#ifndef RELIBRA_WORKER_AGENT_PLACEMENT_H_
#define RELIBRA_WORKER_AGENT_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_agent/group_shape.h"

namespace relibra::agent {

// An expert whose home changes, with the home slots at both ends.
struct HomeMove {
  int layer = 0;
  int expert = 0;
  int from_rank = 0;
  int from_slot = 0;
  int to_rank = 0;
  int to_slot = 0;

  friend bool operator==(const HomeMove&, const HomeMove&) = default;
};

// A value. Every rank holds E/P experts of every layer, and every rank derives the same slots from
// the same history of homes, so ranks that agree on homes agree on slots.
class Placement {
 public:
  // Expert e on rank e / (E/P), slot e % (E/P). The shape must be valid.
  static Placement Linear(const GroupShape& shape);

  // The placement after homes changed to home_rank [L][E]: an expert that stays keeps its slot; a
  // rank's incoming experts, ascending, take the slots that its outgoing ones leave, ascending.
  // INVALID_ARGUMENT naming layer and expert or rank unless every rank gets E/P experts.
  absl::StatusOr<Placement> WithHomes(const std::vector<std::vector<int32_t>>& home_rank) const;

  int RankOf(int layer, int expert) const { return entries_[Index(layer, expert)].rank; }
  int SlotOf(int layer, int expert) const { return entries_[Index(layer, expert)].slot; }
  // The experts of one rank by home slot, [E/P].
  std::vector<int> ExpertsOf(int layer, int rank) const;
  // [L][E]
  std::vector<std::vector<int32_t>> HomeRanks() const;

  // What has to move to get from here to `next`, ascending by (layer, expert).
  std::vector<HomeMove> MovesTo(const Placement& next) const;

  // Equal for equal placements.
  uint64_t Fingerprint() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  struct Entry {
    int32_t rank = 0;
    int32_t slot = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  Placement(int layers, int experts, int ranks)
      : layers_(layers),
        experts_(experts),
        ranks_(ranks),
        entries_(static_cast<size_t>(layers) * experts) {}

  size_t Index(int layer, int expert) const {
    return static_cast<size_t>(layer) * experts_ + expert;
  }

  int layers_;
  int experts_;
  int ranks_;
  std::vector<Entry> entries_;  // [L, E]
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_PLACEMENT_H_

#include "planner_service/baseline/even_homes.h"

#include <algorithm>
#include <cstddef>

namespace relibra {
namespace {

class HomeMatching {
 public:
  HomeMatching(absl::Span<const std::vector<int32_t>> holders, int ranks, int capacity)
      : holders_(holders),
        capacity_(capacity),
        home_(holders.size(), -1),
        residents_(ranks),
        visited_(ranks) {}

  bool HasRoom(int rank) const { return static_cast<int>(residents_[rank].size()) < capacity_; }

  void Settle(int expert, int rank) {
    home_[expert] = rank;
    residents_[rank].push_back(expert);
  }

  // Finds a place for `expert`, moving others along one augmenting path if need be.
  bool Place(int expert) {
    std::fill(visited_.begin(), visited_.end(), 0);
    return Augment(expert);
  }

  bool placed(int expert) const { return home_[expert] >= 0; }
  std::vector<int32_t> TakeHomes() && { return std::move(home_); }

 private:
  bool Augment(int expert) {
    for (int rank : holders_[expert]) {
      if (visited_[rank] == 0 && HasRoom(rank)) {
        Settle(expert, rank);
        return true;
      }
    }
    for (int rank : holders_[expert]) {
      if (visited_[rank] != 0) continue;
      visited_[rank] = 1;
      // A resident that finds a place elsewhere makes room. The list changes only when one did.
      for (size_t i = 0; i < residents_[rank].size(); ++i) {
        const int resident = residents_[rank][i];
        if (!Augment(resident)) continue;
        residents_[rank][i] = expert;
        home_[expert] = rank;
        return true;
      }
    }
    return false;
  }

  absl::Span<const std::vector<int32_t>> holders_;
  const int capacity_;
  std::vector<int32_t> home_;
  std::vector<std::vector<int>> residents_;  // experts at home on each rank
  std::vector<char> visited_;                // ranks, by the search under way
};

}  // namespace

std::vector<int32_t> ChooseHomes(absl::Span<const std::vector<int32_t>> holders,
                                 absl::Span<const int32_t> current, int ranks, int capacity) {
  HomeMatching matching(holders, ranks, capacity);
  const int experts = static_cast<int>(holders.size());
  for (int e = 0; e < experts; ++e) {
    const bool holds = std::binary_search(holders[e].begin(), holders[e].end(), current[e]);
    if (holds && matching.HasRoom(current[e])) matching.Settle(e, current[e]);
  }
  for (int e = 0; e < experts; ++e) {
    if (!matching.placed(e)) matching.Place(e);
  }
  return std::move(matching).TakeHomes();
}

}  // namespace relibra

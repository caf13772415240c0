#include "worker_agent/placement.h"

#include "absl/strings/str_cat.h"

namespace relibra::agent {

Placement Placement::Linear(const GroupShape& shape) {
  Placement placement(shape.layers(), shape.experts, shape.ranks());
  for (int l = 0; l < shape.layers(); ++l) {
    for (int e = 0; e < shape.experts; ++e) {
      placement.entries_[placement.Index(l, e)] = {e / shape.home_slots(), e % shape.home_slots()};
    }
  }
  return placement;
}

absl::StatusOr<Placement> Placement::WithHomes(
    const std::vector<std::vector<int32_t>>& home_rank) const {
  if (home_rank.size() != static_cast<size_t>(layers_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("homes of ", home_rank.size(), " layers, expected ", layers_));
  }
  const int home_slots = experts_ / ranks_;
  Placement next(layers_, experts_, ranks_);
  for (int l = 0; l < layers_; ++l) {
    if (home_rank[l].size() != static_cast<size_t>(experts_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", l, ": homes of ", home_rank[l].size(), " experts, expected ", experts_));
    }
    std::vector<char> taken(static_cast<size_t>(ranks_) * home_slots, 0);
    for (int e = 0; e < experts_; ++e) {
      const int rank = home_rank[l][e];
      if (rank < 0 || rank >= ranks_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer ", l, ", expert ", e, ": home rank is ", rank, ", expected 0 to ", ranks_ - 1));
      }
      if (rank != RankOf(l, e)) continue;
      next.entries_[Index(l, e)] = entries_[Index(l, e)];
      taken[static_cast<size_t>(rank) * home_slots + SlotOf(l, e)] = 1;
    }
    std::vector<int> next_slot(ranks_, 0);
    for (int e = 0; e < experts_; ++e) {
      const int rank = home_rank[l][e];
      if (rank == RankOf(l, e)) continue;
      int& slot = next_slot[rank];
      while (slot < home_slots && taken[static_cast<size_t>(rank) * home_slots + slot]) ++slot;
      if (slot == home_slots) {
        return absl::InvalidArgumentError(absl::StrCat("layer ", l, ", expert ", e, ": rank ", rank,
                                                       " is home to more than ", home_slots,
                                                       " experts"));
      }
      next.entries_[Index(l, e)] = {rank, slot++};
    }
  }
  return next;
}

std::vector<int> Placement::ExpertsOf(int layer, int rank) const {
  std::vector<int> experts(experts_ / ranks_);
  for (int e = 0; e < experts_; ++e) {
    if (RankOf(layer, e) == rank) experts[SlotOf(layer, e)] = e;
  }
  return experts;
}

std::vector<std::vector<int32_t>> Placement::HomeRanks() const {
  std::vector<std::vector<int32_t>> homes(layers_, std::vector<int32_t>(experts_));
  for (int l = 0; l < layers_; ++l) {
    for (int e = 0; e < experts_; ++e) homes[l][e] = RankOf(l, e);
  }
  return homes;
}

std::vector<HomeMove> Placement::MovesTo(const Placement& next) const {
  std::vector<HomeMove> moves;
  for (int l = 0; l < layers_; ++l) {
    for (int e = 0; e < experts_; ++e) {
      const Entry& from = entries_[Index(l, e)];
      const Entry& to = next.entries_[Index(l, e)];
      if (from != to) moves.push_back({l, e, from.rank, from.slot, to.rank, to.slot});
    }
  }
  return moves;
}

uint64_t Placement::Fingerprint() const {
  // FNV-1a over the entries: the same on every machine.
  uint64_t hash = 14695981039346656037ULL;
  for (const Entry& entry : entries_) {
    for (const int32_t value : {entry.rank, entry.slot}) {
      hash = (hash ^ static_cast<uint32_t>(value)) * 1099511628211ULL;
    }
  }
  return hash;
}

}  // namespace relibra::agent

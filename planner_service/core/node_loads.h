// The search state of reordering: which group of ranks (a node, or a single rank) holds each expert
// of a layer, and the load of each group in each micro-batch.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_NODE_LOADS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_NODE_LOADS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace relibra {

// The loads of one layer's experts, prepared for the search: expert-major, padded to whole vectors
// and scaled down (a common right shift) until every sum that the search takes fits into 32 bits.
class ExpertLoads {
 public:
  // totals: [M, E]
  ExpertLoads(absl::Span<const uint32_t> totals, int experts);

  int experts() const { return experts_; }
  int micro_batches() const { return micro_batches_; }
  int stride() const { return stride_; }  // int32s a row, a multiple of 16; the rest is zero
  const int32_t* Row(int expert) const { return &rows_[size_t{1} * expert * stride_]; }

 private:
  int experts_, micro_batches_, stride_;
  std::vector<int32_t> rows_;
};

class NodeLoads {
 public:
  // node: [E], the group of each expert, 0..groups-1. `loads` must outlive this.
  NodeLoads(const ExpertLoads& loads, int groups, std::vector<int32_t> node);

  int groups() const { return groups_; }
  int NodeOf(int expert) const { return node_[expert]; }
  const std::vector<int32_t>& nodes() const { return node_; }
  const std::vector<std::vector<int32_t>>& members() const { return members_; }

  // The sum over micro-batches of the heaviest group: what reordering minimises.
  int64_t Objective() const { return objective_; }

  // The objective after experts e and f, of different groups, change places. O(M groups).
  int64_t ObjectiveAfterSwap(int e, int f) const;

  // The groups that are heaviest in some micro-batch, those first that stand out most from the next
  // heaviest in all of theirs together. Only a swap that touches one of them lowers the objective.
  std::vector<int> HeaviestGroups() const;

  // Exchanges the groups of e and f.
  void Swap(int e, int f);

  // Swaps that lower the objective, until none does or `passes` passes are done: exact descent,
  // first improvement over the pairs of every two groups, O(M) a pair.
  void Descend(int passes);

 private:
  int32_t* Row(int group) { return &load_[size_t{1} * group * stride_]; }
  const int32_t* Row(int group) const { return &load_[size_t{1} * group * stride_]; }
  bool DescendPair(int a, int b);
  // The heaviest load of the groups other than a and b, by micro-batch, into others_.
  void MaxOfOthers(int a, int b, int32_t* out) const;

  const ExpertLoads& loads_;
  int groups_, stride_;
  std::vector<int32_t> node_;                  // [E]
  std::vector<std::vector<int32_t>> members_;  // [groups], experts
  std::vector<int32_t> place_;                 // [E], index within members_
  std::vector<int32_t> load_;                  // [groups, stride]
  int64_t objective_ = 0;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_NODE_LOADS_H_

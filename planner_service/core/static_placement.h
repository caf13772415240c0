// Places replicated experts once for many batches, from their loads in the past: what inference
// engines call EPLB. Training plans with planner.h, which knows the loads of the step; this is for
// engines, and for trainers that cannot replay routing.
//
//   absl::StatusOr<StaticPlacer> placer = StaticPlacer::Create(
//       {.experts = 256, .physical = 288, .groups = 8, .nodes = 4, .gpus = 32});
//   placer->Place(weights, physical_to_logical, replica_count);
#ifndef RELIBRA_PLANNER_SERVICE_CORE_STATIC_PLACEMENT_H_
#define RELIBRA_PLANNER_SERVICE_CORE_STATIC_PLACEMENT_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner_service/core/static_layout.h"

namespace relibra {

// Every GPU has physical / gpus slots. When the nodes divide the groups, every group of experts
// stays in one node (hierarchical); else the GPUs are one pool (global), as in DeepSeek's EPLB.
struct StaticShape {
  int experts = 0;   // logical experts, E
  int physical = 0;  // slots, P >= E
  int groups = 1;    // groups of E / groups consecutive experts
  int nodes = 1;
  int gpus = 1;
};

// Places one layer after another. Keeps its working memory between layers, so that a layer costs no
// allocation. One thread at a time.
class StaticPlacer {
 public:
  // INVALID_ARGUMENT naming the field unless gpus divides physical, physical >= experts >= 1, and
  // in the hierarchical case groups divides experts and nodes divides gpus.
  static absl::StatusOr<StaticPlacer> Create(const StaticShape& shape);

  // weight: [E], load of each logical expert, finite and >= 0; INVALID_ARGUMENT naming the expert
  // otherwise. An expert's load is split evenly over its replicas.
  // physical_to_logical: [P], out: the expert in each slot, slots in order of GPUs, ascending on
  // each. replica_count: [E], out: replicas of each expert, at least 1.
  //
  // The load of the fullest GPU is never above that of DeepSeek's algorithm (ties broken by the
  // lower index). No GPU holds an expert twice, unless there are more slots on a GPU than experts
  // in a node, or every placement found without would be worse than DeepSeek's.
  absl::Status Place(absl::Span<const double> weight, absl::Span<int64_t> physical_to_logical,
                     absl::Span<int64_t> replica_count);

 private:
  explicit StaticPlacer(const StaticShape& shape);

  // Fills order_ with experts node by node, groups packed heaviest first into the lightest node.
  void PackGroups(absl::Span<const double> weight);
  // Swaps groups of the heaviest node while that lowers it. True when anything moved.
  bool SwapGroups();
  void WriteOrder();
  // Lays out order_ without duplicates, refined at least until it is no worse than `published` if
  // it can be; returns the load of the fullest GPU.
  double LayOutApart(absl::Span<const double> weight, double published);
  // Tries the packings that one swap of groups away gives, and writes what is better than `best`.
  void TryOtherNodes(absl::Span<const double> weight, double published, double best,
                     absl::Span<int64_t> physical_to_logical, absl::Span<int64_t> replica_count);

  StaticShape shape_;
  StaticLayout layout_;
  std::vector<double> group_load_;  // [groups]
  std::vector<double> node_load_;   // [nodes]
  std::vector<int> node_groups_;    // [groups], the groups of node 0, of node 1, ...
  std::vector<int> node_used_;      // [nodes], groups placed so far
  std::vector<int> sorted_;         // [groups], by load
  std::vector<std::tuple<double, int, int>> tries_;  // node load, places of the groups to swap
  std::vector<int> order_;                           // [E], the experts of node 0, of node 1, ...
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_STATIC_PLACEMENT_H_

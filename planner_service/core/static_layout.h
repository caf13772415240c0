// One layer's experts, replicated and laid out on GPUs: the state that StaticPlacer improves.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_STATIC_LAYOUT_H_
#define RELIBRA_PLANNER_SERVICE_CORE_STATIC_LAYOUT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace relibra {

// Experts are numbered here by their place in the order given to Assign: node k has the experts
// k * E/N .. (k + 1) * E/N - 1. Every step is deterministic: ties go to the lower index. An
// expert's share is its load / its replicas. Not for several threads at once.
class StaticLayout {
 public:
  // Nodes divides experts and gpus, gpus divides physical.
  StaticLayout(int experts, int physical, int nodes, int gpus);

  // Starts a layer: order [E] are the logical experts node by node, weight [E] their loads.
  void Assign(absl::Span<const int> order, absl::Span<const double> weight);

  // Deals the slots of every node to its experts: each gets one, each further one goes to the
  // expert with the largest share that has fewer than `cap` replicas. O(slots log experts).
  void Replicate(int cap);

  // Puts replicas, largest share first, on the GPU with the least load that has a free slot.
  // O(slots log GPUs of a node).
  void PackFreely();
  // The same, but never an expert twice on one GPU. Needs Replicate(cap <= GPUs of a node) and at
  // most as many slots a GPU as experts a node.
  void PackApart();

  // Lowers the fullest GPU while it can and its load is above `target`: by the best swap of two
  // slots, else by giving a slot of a replicated expert to another expert. `apart`: never makes a
  // GPU hold an expert twice.
  void Refine(bool apart, double target);
  // Swaps duplicates off their GPUs where no GPU gets above the fullest.
  void SpreadDuplicates();

  // The load of the fullest GPU, summed afresh.
  double MaxLoad() const;

  // physical_to_logical: [P], ascending on each GPU; replica_count: [E], both by logical expert.
  void Write(absl::Span<int64_t> physical_to_logical, absl::Span<int64_t> replica_count) const;

  // Mean load of the GPUs of the heaviest node: no layout of this order is below it.
  double Floor() const;
  int gpus_per_node() const { return node_gpus_; }
  int experts_per_node() const { return node_experts_; }
  int slots_per_gpu() const { return slots_; }

 private:
  // Replicas on `gpu` of `expert`, who must be of the same node.
  int& Holds(int gpu, int expert) { return holds_[gpu * node_experts_ + in_node_[expert]]; }
  int Holds(int gpu, int expert) const { return holds_[gpu * node_experts_ + in_node_[expert]]; }
  void SortReplicas(int node);
  void Clear();
  // The GPUs of a node that have a free slot, as a heap; a GPU is put back with its load of then.
  void FillOpenGpus(int node);
  int PopOpenGpu();
  void PushOpenGpu(int gpu);
  void Put(int gpu, int expert);
  void SetSlot(int slot, int expert);
  // Makes room for `expert` whom every GPU with a free slot already holds: a full GPU takes it and
  // passes one of its replicas on to a GPU with a free slot.
  void PutByPassingOn(int node, int expert);
  bool Swap(int fullest, bool apart);
  void ApplySwap(int slot, int other);
  bool Shift(int fullest);
  // The largest load among the GPUs that change when `slot` is given to `expert`, or `bound` when
  // it is not below it. lightest: the least load of the node's GPUs.
  double LoadAfterShift(int slot, int expert, double lightest, double bound) const;
  void ApplyShift(int slot, int expert);

  int experts_, physical_, nodes_, gpus_;
  int node_experts_, node_gpus_, slots_;
  std::vector<int> in_node_;       // [E], an expert's index among its node's
  std::vector<int> logical_;       // [E]
  std::vector<double> weight_;     // [E]
  std::vector<double> share_;      // [E], weight / count
  std::vector<double> node_mean_;  // [N], mean load of a node's GPUs
  std::vector<int> count_;         // [E]
  std::vector<int> replicas_;      // [P], the experts of the slots of node 0, of node 1, ...
  std::vector<int> sorted_;        // [P/N], a node's replicas by share
  std::vector<std::pair<double, int>> heap_;
  std::vector<std::pair<double, int>> open_;  // (load, GPU)
  std::vector<int> skipped_;
  std::vector<int> slot_expert_;    // [P]
  std::vector<double> slot_share_;  // [P], share_ of the expert there
  std::vector<int> used_;           // [D], slots in use
  std::vector<double> load_;        // [D]
  std::vector<int> holds_;          // [D, E/N]
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_STATIC_LAYOUT_H_

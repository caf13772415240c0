// Sequences as a placement of experts sees them: by how much they load each node of each layer.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_NODE_SPACE_H_
#define RELIBRA_PLANNER_SERVICE_CORE_NODE_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/composition.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// Which node each expert is at home in, and the loads of nodes that follow.
class NodeSpace {
 public:
  // tokens: [Q]; counts: [Q][L][E]; current: [L][E] homes, E/P on every rank. All must outlive it.
  NodeSpace(absl::Span<const uint32_t> tokens, absl::Span<const uint32_t> counts,
            const Topology& topology, const Placement& current, ParallelFor parallel_for);

  const Placement& homes() const { return homes_; }

  // Plans homes for a composition, starting from those there are. O(Q L E) and the planning.
  void PlanHomesFor(const Composition& composition);

  // Mean over (micro-batch, layer) of max / mean node load.
  double Imbalance(const Composition& composition) const;

  // Numbers of a vector: L x N + 2.
  size_t dims() const { return layers_ * topology_.nodes + 2; }

  // [chosen][dims()]: by how many pairs each chosen unit loads each node of each layer above the
  // mean node; last, its tokens and attention above the mean unit's, weighted so that a micro-batch
  // that is too long is as bad as some nodes that are too heavy. O(Q L E).
  std::vector<double> VectorsOf(const std::vector<PackUnit>& units,
                                absl::Span<const size_t> chosen) const;

 private:
  void KeepNodes(size_t l);
  // [M, E] of one layer.
  std::vector<uint32_t> TotalsOf(const Composition& composition, int l) const;
  void AddSequence(size_t q, double* vector) const;
  void AddLengths(const std::vector<PackUnit>& units, absl::Span<const size_t> chosen,
                  std::vector<double>& vectors) const;

  const absl::Span<const uint32_t> tokens_;
  const absl::Span<const uint32_t> counts_;
  const Topology& topology_;
  const size_t layers_;
  const size_t experts_;
  Placement homes_;
  std::vector<std::vector<uint32_t>> node_of_;  // [L][E]
  ParallelFor parallel_for_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_NODE_SPACE_H_

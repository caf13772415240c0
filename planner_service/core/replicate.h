// Replicas of one layer, micro-batch after micro-batch, with homes and bridges fixed.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_
#define RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner_service/core/bridge.h"
#include "planner_service/core/node_fill.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

struct ReplicaOptions {
  double cost = 0;         // tokens that making one replica is worth
  double slack = 0;        // share of the mean by which the target may be missed to save copies
  int search_steps = 200;  // of the search that follows when filling fails
};

class ReplicaPlanner {
 public:
  // home_rank: [E]. One planner serves one layer; not thread-safe.
  ReplicaPlanner(const Topology& topology, absl::Span<const int32_t> home_rank,
                 std::vector<Bridge> bridges, const ReplicaOptions& options);

  // Plans the next micro-batch. totals: [E]. Every node only has to reach what the slowest node
  // can: the others use the difference to save copies. A copy that the micro-batch before had is
  // used where it fits and keeps its slot. Returns the replicas (bridges among them) ascending by
  // (expert, rank).
  std::vector<Replica> Next(absl::Span<const uint32_t> totals);

  // The heaviest rank of the micro-batch that Next planned last.
  int64_t max_load() const { return max_load_; }
  // Of the replicas that Next returned last, those that were already there.
  int64_t kept() const { return kept_; }

 private:
  void Load(int node, absl::Span<const uint32_t> totals, int slots);
  // The least target from `least` on that `node` can be brought to.
  int64_t LeastTarget(int node, absl::Span<const uint32_t> totals, int64_t least);
  // Fills `node` to `target`, with fewer slots where all of them fail.
  bool FillNode(int node, absl::Span<const uint32_t> totals, int64_t target);
  // Fills every node to about `target` (raised to what the slowest node can reach).
  std::vector<Replica> FillNodes(absl::Span<const uint32_t> totals, int64_t target, int64_t slack);
  void AddCopies(int node, std::vector<Replica>& replicas) const;
  void AddBridges(std::vector<Replica>& replicas) const;
  void Remember(const std::vector<Replica>& replicas);
  // What a plan costs: its heaviest rank, and the copies that have to be fetched for it.
  double CostOf(absl::Span<const uint32_t> totals, const std::vector<Replica>& replicas);

  const Topology topology_;
  const std::vector<int32_t> home_rank_;
  const std::vector<Bridge> bridges_;
  const ReplicaOptions options_;
  std::vector<std::vector<int32_t>> experts_;         // [N], experts at home in each node
  std::vector<std::vector<NodeFill::Copy>> earlier_;  // [N], copies of the micro-batch before
  std::vector<std::vector<int32_t>> earlier_slots_;   // [N], the slot of each of them
  std::vector<int64_t> bridge_tokens_;                // [bridges]
  std::vector<int64_t> given_;                        // [E], tokens handed over a bridge
  NodeFill fill_;
  int64_t max_load_ = 0;
  int64_t kept_ = 0;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_REPLICATE_H_

#include "planner_service/core/planner.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/core/digest.h"
#include "planner_service/core/reorder.h"
#include "planner_service/core/replicate.h"

namespace relibra {
namespace {

absl::Status CheckPlacement(const Topology& topology, const LoadShape& shape,
                            const Placement& placement) {
  if (static_cast<int>(placement.size()) != shape.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected ", shape.layers, " layers, got ", placement.size()));
  }
  const int experts_per_rank = shape.experts / topology.num_ranks();
  std::vector<int> homes(topology.num_ranks());
  for (int l = 0; l < shape.layers; ++l) {
    if (static_cast<int>(placement[l].size()) != shape.experts) {
      return absl::InvalidArgumentError(absl::StrCat("placement: layer ", l, ": expected ",
                                                     shape.experts, " experts, got ",
                                                     placement[l].size()));
    }
    std::fill(homes.begin(), homes.end(), 0);
    for (int e = 0; e < shape.experts; ++e) {
      const int rank = placement[l][e];
      if (rank < 0 || rank >= topology.num_ranks()) {
        return absl::InvalidArgumentError(absl::StrCat("placement: layer ", l, ", expert ", e,
                                                       ": rank ", rank, " is not in 0..",
                                                       topology.num_ranks() - 1));
      }
      if (++homes[rank] > experts_per_rank) {
        return absl::InvalidArgumentError(absl::StrCat("placement: layer ", l, ": rank ", rank,
                                                       " is home to more than ", experts_per_rank,
                                                       " experts"));
      }
    }
  }
  return absl::OkStatus();
}

// What one layer adds to the summary; imbalances are summed over its micro-batches.
struct LayerOutcome {
  LayerPlan plan;
  PlanSummary sums{0, 0, 0, 0};
};

double Ratio(int64_t most, int64_t total, int parts) {
  return total == 0 ? 1.0 : static_cast<double>(most) * parts / static_cast<double>(total);
}

// Max over groups of `ranks_per_group` ranks / mean over groups.
double Imbalance(absl::Span<const int64_t> rank_loads, int ranks_per_group) {
  int64_t most = 0, total = 0;
  for (size_t begin = 0; begin < rank_loads.size(); begin += ranks_per_group) {
    int64_t sum = 0;
    for (int i = 0; i < ranks_per_group; ++i) sum += rank_loads[begin + i];
    most = std::max(most, sum);
    total += sum;
  }
  return Ratio(most, total, static_cast<int>(rank_loads.size()) / ranks_per_group);
}

LayerOutcome PlanLayer(const Loads& loads, const Topology& topology, int layer,
                       const std::vector<int32_t>& current, const PlanOptions& options) {
  const LoadShape& shape = loads.shape();
  std::vector<uint32_t> totals(static_cast<size_t>(shape.micro_batches) * shape.experts);
  for (int m = 0; m < shape.micro_batches; ++m) {
    absl::Span<const uint32_t> matrix = loads.At(m, layer);
    uint32_t* total = &totals[static_cast<size_t>(m) * shape.experts];
    for (int s = 0; s < shape.sources; ++s) {
      const uint32_t* row = matrix.data() + static_cast<size_t>(s) * shape.experts;
      for (int e = 0; e < shape.experts; ++e) total[e] += row[e];
    }
  }

  LayerOutcome outcome;
  const bool may_move = !options.max_moves || *options.max_moves >= shape.experts * shape.layers;
  outcome.plan.home_rank = may_move ? PlanHomes(topology, totals, current) : current;
  for (int e = 0; e < shape.experts; ++e) {
    const int from = current[e], to = outcome.plan.home_rank[e];
    if (from == to) continue;
    outcome.plan.moves.push_back({e, from, to});
    ++outcome.sums.moves;
    if (topology.NodeOf(from) != topology.NodeOf(to)) ++outcome.sums.cross_node_moves;
  }
  std::vector<int64_t> before(topology.num_ranks()), after(topology.num_ranks());
  for (int m = 0; m < shape.micro_batches; ++m) {
    absl::Span<const uint32_t> total =
        absl::MakeConstSpan(totals).subspan(static_cast<size_t>(m) * shape.experts, shape.experts);
    std::vector<Replica> replicas = PlanReplicas(topology, total, outcome.plan.home_rank);
    std::fill(before.begin(), before.end(), 0);
    std::fill(after.begin(), after.end(), 0);
    for (int e = 0; e < shape.experts; ++e) {
      before[current[e]] += total[e];
      after[outcome.plan.home_rank[e]] += total[e];
      outcome.sums.tokens += total[e];
    }
    outcome.sums.imbalance_before += Imbalance(before, 1);
    const double node_imbalance = Imbalance(after, topology.gpus_per_node);
    outcome.sums.node_imbalance_after += node_imbalance;
    outcome.sums.lower_bound += 1.0;
    for (const Replica& replica : replicas) {
      after[outcome.plan.home_rank[replica.expert]] -= replica.tokens;
      after[replica.rank] += replica.tokens;
    }
    outcome.sums.imbalance_after += Imbalance(after, 1);
    outcome.sums.replicas += static_cast<int64_t>(replicas.size());
    outcome.plan.replicas.push_back(std::move(replicas));
  }
  return outcome;
}

}  // namespace

void InOrder(int n, absl::FunctionRef<void(int)> task) {
  for (int i = 0; i < n; ++i) task(i);
}

absl::StatusOr<Plan> PlanStep(const Loads& loads, const Topology& topology,
                              const Placement& current, const PlanOptions& options,
                              ParallelFor parallel_for) {
  const auto start = std::chrono::steady_clock::now();
  const LoadShape& shape = loads.shape();
  if (absl::Status status = Validate(topology, shape.experts); !status.ok()) return status;
  if (shape.sources != topology.num_ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("loads: expected ", topology.num_ranks(),
                                                   " source ranks, got ", shape.sources));
  }
  if (absl::Status status = CheckPlacement(topology, shape, current); !status.ok()) return status;
  if (absl::Status status = loads.CheckSums(); !status.ok()) return status;

  std::vector<LayerOutcome> outcomes(shape.layers);
  parallel_for(shape.layers, [&](int layer) {
    outcomes[layer] = PlanLayer(loads, topology, layer, current[layer], options);
  });
  Plan plan{topology, {}, {0, 0, 0, 0}, ""};
  PlanSummary& summary = plan.summary;
  for (LayerOutcome& outcome : outcomes) {
    summary.imbalance_before += outcome.sums.imbalance_before;
    summary.imbalance_after += outcome.sums.imbalance_after;
    summary.lower_bound += outcome.sums.lower_bound;
    summary.node_imbalance_after += outcome.sums.node_imbalance_after;
    summary.moves += outcome.sums.moves;
    summary.cross_node_moves += outcome.sums.cross_node_moves;
    summary.replicas += outcome.sums.replicas;
    summary.tokens += outcome.sums.tokens;
    plan.layers.push_back(std::move(outcome.plan));
  }
  const double cells = static_cast<double>(shape.layers) * shape.micro_batches;
  summary.imbalance_before /= cells;
  summary.imbalance_after /= cells;
  summary.lower_bound /= cells;
  summary.node_imbalance_after /= cells;
  plan.digest = DigestOf(plan);
  summary.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

}  // namespace relibra

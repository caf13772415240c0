#include "planner_service/core/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/core/bounds.h"
#include "planner_service/core/digest.h"
#include "planner_service/core/expert_totals.h"
#include "planner_service/core/home_budget.h"
#include "planner_service/core/layer_planner.h"
#include "planner_service/core/reorder.h"

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

double Ratio(int64_t most, int64_t total, int parts) {
  return total == 0 ? 1.0 : static_cast<double>(most) * parts / static_cast<double>(total);
}

// Max over groups of `ranks_a_group` ranks / mean over groups.
double Imbalance(absl::Span<const int64_t> rank_loads, int ranks_a_group) {
  int64_t most = 0, total = 0;
  for (size_t begin = 0; begin < rank_loads.size(); begin += ranks_a_group) {
    int64_t sum = 0;
    for (int i = 0; i < ranks_a_group; ++i) sum += rank_loads[begin + i];
    most = std::max(most, sum);
    total += sum;
  }
  return Ratio(most, total, static_cast<int>(rank_loads.size()) / ranks_a_group);
}

// What a layer adds to the summary; imbalances are sums over its micro-batches.
PlanSummary Summarise(const Topology& topology, absl::Span<const uint32_t> totals,
                      const std::vector<int32_t>& current, const LayerOutcome& outcome,
                      const PlanOptions& options) {
  const LayerPlan& plan = outcome.plan;
  PlanSummary sums{0, 0, 0, 0};
  sums.moves = static_cast<int64_t>(plan.moves.size());
  for (const Move& move : plan.moves) {
    sums.cross_node_moves += topology.NodeOf(move.from_rank) != topology.NodeOf(move.to_rank);
  }
  sums.bridges = outcome.bridges;
  sums.replicas_kept = outcome.kept;
  const size_t experts = current.size();
  std::vector<int64_t> before(topology.num_ranks()), after(topology.num_ranks());
  for (size_t m = 0; m < plan.replicas.size(); ++m) {
    absl::Span<const uint32_t> total = totals.subspan(m * experts, experts);
    std::fill(before.begin(), before.end(), 0);
    std::fill(after.begin(), after.end(), 0);
    for (size_t e = 0; e < experts; ++e) {
      before[current[e]] += total[e];
      after[plan.home_rank[e]] += total[e];
      sums.tokens += total[e];
    }
    sums.imbalance_before += Imbalance(before, 1);
    sums.node_imbalance_after += Imbalance(after, topology.gpus_per_node);
    sums.lower_bound += LowerBound(topology, total, options.bridges);
    for (const Replica& replica : plan.replicas[m]) {
      after[plan.home_rank[replica.expert]] -= replica.tokens;
      after[replica.rank] += replica.tokens;
      sums.replicas += replica.cross_node ? 0 : 1;
    }
    sums.imbalance_after += Imbalance(after, 1);
  }
  return sums;
}

void Add(const PlanSummary& layer, PlanSummary& all) {
  all.imbalance_before += layer.imbalance_before;
  all.imbalance_after += layer.imbalance_after;
  all.lower_bound += layer.lower_bound;
  all.node_imbalance_after += layer.node_imbalance_after;
  all.moves += layer.moves;
  all.cross_node_moves += layer.cross_node_moves;
  all.replicas += layer.replicas;
  all.bridges += layer.bridges;
  all.replicas_kept += layer.replicas_kept;
  all.tokens += layer.tokens;
}

absl::Status CheckOptions(const PlanOptions& options) {
  if (options.bridges && *options.bridges < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bridges: expected 0 or more, got ", *options.bridges));
  }
  if (options.max_moves && *options.max_moves < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_moves: expected 0 or more, got ", *options.max_moves));
  }
  for (const auto& [name, cost] :
       {std::pair{"move_cost", options.move_cost}, {"replica_cost", options.replica_cost}}) {
    // Infinitely much times no change would be no number.
    if (!std::isfinite(cost) || cost < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected a finite number of 0 or more, got ", cost));
    }
  }
  return absl::OkStatus();
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
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;

  const bool free_moves = !options.max_moves && options.move_cost == 0;
  // Where it costs little, free moves see what limited ones see, so as not to end worse.
  const bool every_budget = !free_moves || shape.experts <= kFewExperts;
  const bool may_move = !options.max_moves || *options.max_moves > 0;
  std::vector<absl::StatusOr<std::vector<uint32_t>>> totals(shape.layers, std::vector<uint32_t>());
  std::vector<std::vector<HomeChoice>> choices(shape.layers);
  parallel_for(shape.layers, [&](int l) {
    totals[l] = SumSources(loads, l);
    if (!totals[l].ok()) return;
    if (!may_move) {
      choices[l].push_back({current[l]});
      return;
    }
    choices[l] = HomeChoices(topology, *totals[l], current[l], options.effort, every_budget,
                             options.seed + l);
  });
  for (const auto& total : totals) {
    if (!total.ok()) return total.status();
  }
  const std::vector<int> taken = SpendMoves(choices, options);

  std::vector<LayerOutcome> outcomes(shape.layers);
  std::vector<PlanSummary> sums(shape.layers);
  parallel_for(shape.layers, [&](int l) {
    outcomes[l] = PlanLayer(topology, *totals[l], current[l],
                            absl::MakeConstSpan(choices[l]).first(taken[l] + 1), options);
    sums[l] = Summarise(topology, *totals[l], current[l], outcomes[l], options);
  });
  Plan plan{topology, {}, {0, 0, 0, 0}, ""};
  for (int l = 0; l < shape.layers; ++l) {
    Add(sums[l], plan.summary);
    plan.layers.push_back(std::move(outcomes[l].plan));
  }
  const double cells = static_cast<double>(shape.layers) * shape.micro_batches;
  plan.summary.imbalance_before /= cells;
  plan.summary.imbalance_after /= cells;
  plan.summary.lower_bound /= cells;
  plan.summary.node_imbalance_after /= cells;
  plan.digest = DigestOf(plan);
  plan.summary.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

}  // namespace relibra

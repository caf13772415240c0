#include "planner_service/baseline/baseline_plan.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/baseline/eplb.h"
#include "planner_service/baseline/even_homes.h"
#include "planner_service/baseline/plan_summary.h"
#include "planner_service/core/digest.h"

namespace relibra {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

absl::Status CheckHomes(const Topology& topology, int layer, int experts,
                        const std::vector<int32_t>& homes) {
  const int ranks = topology.num_ranks();
  if (static_cast<int>(homes.size()) != experts) {
    return absl::InvalidArgumentError(absl::StrCat("placement: layer ", layer, ": expected ",
                                                   experts, " experts, got ", homes.size()));
  }
  std::vector<int> at_home(ranks);
  for (int e = 0; e < experts; ++e) {
    if (homes[e] < 0 || homes[e] >= ranks) {
      return absl::InvalidArgumentError(absl::StrCat("placement: layer ", layer, ", expert ", e,
                                                     ": rank ", homes[e], " is not in 0..",
                                                     ranks - 1));
    }
    if (++at_home[homes[e]] > experts / ranks) {
      return absl::InvalidArgumentError(absl::StrCat("placement: layer ", layer, ": rank ",
                                                     homes[e], " is home to more than ",
                                                     experts / ranks, " experts"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const Loads& loads, const Topology& topology, const Placement& current) {
  const LoadShape& shape = loads.shape();
  if (absl::Status s = Validate(topology, shape.experts); !s.ok()) return s;
  if (shape.sources != topology.num_ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("loads: expected ", topology.num_ranks(),
                                                   " source ranks, got ", shape.sources));
  }
  if (static_cast<int>(current.size()) != shape.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected ", shape.layers, " layers, got ", current.size()));
  }
  for (int l = 0; l < shape.layers; ++l) {
    if (absl::Status s = CheckHomes(topology, l, shape.experts, current[l]); !s.ok()) return s;
  }
  return loads.CheckSums();
}

// Expert loads of one (micro-batch, layer), added to `sums`, [E].
void AddExpertLoads(const Loads& loads, int micro_batch, int layer, std::vector<uint64_t>& sums) {
  const absl::Span<const uint32_t> matrix = loads.At(micro_batch, layer);
  const size_t experts = sums.size();
  for (size_t i = 0; i < matrix.size(); ++i) sums[i % experts] += matrix[i];
}

// EPLB's copies of one expert on one rank.
struct RankCopies {
  int32_t rank = 0;
  int32_t first = 0;  // of this expert's copies on lower ranks
  int32_t copies = 0;
};

// [E], for each expert its ranks, ascending.
std::vector<std::vector<RankCopies>> CopiesByExpert(const EplbLayer& layer, int ranks) {
  const int a_rank = static_cast<int>(layer.physical_to_logical.size()) / ranks;
  std::vector<std::vector<RankCopies>> experts(layer.logical_count.size());
  std::vector<int32_t> seen(experts.size());
  for (size_t p = 0; p < layer.physical_to_logical.size(); ++p) {
    const int e = layer.physical_to_logical[p];
    const int rank = static_cast<int>(p) / a_rank;
    if (experts[e].empty() || experts[e].back().rank != rank) {
      experts[e].push_back({.rank = rank, .first = seen[e]});
    }
    ++experts[e].back().copies;
    ++seen[e];
  }
  return experts;
}

// Homes by matching; experts that found none go to their first rank, whose name is in the status.
absl::Status SetHomes(const Topology& topology, int layer,
                      const std::vector<std::vector<RankCopies>>& copies,
                      const std::vector<int32_t>& current, LayerPlan& plan) {
  std::vector<std::vector<int32_t>> holders(copies.size());
  for (size_t e = 0; e < copies.size(); ++e) {
    for (const RankCopies& at : copies[e]) holders[e].push_back(at.rank);
  }
  const int capacity = static_cast<int>(copies.size()) / topology.num_ranks();
  plan.home_rank = ChooseHomes(holders, current, topology.num_ranks(), capacity);
  absl::Status status;
  for (size_t e = 0; e < copies.size(); ++e) {
    int32_t& home = plan.home_rank[e];
    if (home < 0) {
      home = holders[e][0];
      status.Update(absl::FailedPreconditionError(absl::StrCat(
          "eplb: layer ", layer, ", expert ", e, ": every rank that EPLB puts it on (rank ", home,
          holders[e].size() > 1 ? " and others" : "", ") is home to ", capacity,
          " other experts already, whatever the choice of homes: this placement can be evaluated, "
          "but is no plan, which must give every rank ",
          capacity, " homes")));
    }
    if (home != current[e]) {
      plan.moves.push_back(
          {.expert = static_cast<int32_t>(e), .from_rank = current[e], .to_rank = home});
    }
  }
  return status;
}

// Replicas with their slots, without tokens; ascending by (expert, rank).
std::vector<Replica> ReplicasOf(const Topology& topology,
                                const std::vector<std::vector<RankCopies>>& copies,
                                const std::vector<int32_t>& homes) {
  std::vector<int32_t> next_slot(topology.num_ranks());
  std::vector<Replica> replicas;
  for (size_t e = 0; e < copies.size(); ++e) {
    for (const RankCopies& at : copies[e]) {
      if (at.rank == homes[e]) continue;
      replicas.push_back({.expert = static_cast<int32_t>(e),
                          .rank = at.rank,
                          .slot = next_slot[at.rank]++,
                          .cross_node = topology.NodeOf(at.rank) != topology.NodeOf(homes[e])});
    }
  }
  return replicas;
}

// The load shared evenly by an expert's copies; the first ones take what does not divide.
uint32_t Share(uint64_t load, int all_copies, const RankCopies& at) {
  const auto remainder = static_cast<int32_t>(load % all_copies);
  const int32_t extra = std::clamp(remainder - at.first, 0, at.copies);
  return static_cast<uint32_t>(load / all_copies * at.copies + extra);
}

absl::Status PlanEplbLayer(const Loads& loads, const Topology& topology, int layer,
                           const std::vector<int32_t>& current, const EplbShape& shape,
                           LayerPlan& plan, absl::Status& even_homes) {
  const int micro_batches = loads.shape().micro_batches;
  const size_t experts = current.size();
  std::vector<uint64_t> sums(experts);
  for (int m = 0; m < micro_batches; ++m) AddExpertLoads(loads, m, layer, sums);
  if (std::all_of(sums.begin(), sums.end(), [](uint64_t load) { return load == 0; })) {
    plan.home_rank = current;
    plan.replicas.resize(micro_batches);
    return absl::OkStatus();
  }
  const std::vector<float> weights(sums.begin(), sums.end());
  const absl::StatusOr<EplbLayer> eplb = RunEplb(weights, shape);
  if (!eplb.ok()) return eplb.status();

  const auto copies = CopiesByExpert(*eplb, topology.num_ranks());
  even_homes = SetHomes(topology, layer, copies, current, plan);
  plan.replicas.assign(micro_batches, ReplicasOf(topology, copies, plan.home_rank));
  for (int m = 0; m < micro_batches; ++m) {
    std::fill(sums.begin(), sums.end(), 0);
    AddExpertLoads(loads, m, layer, sums);
    for (Replica& replica : plan.replicas[m]) {
      const std::vector<RankCopies>& of_expert = copies[replica.expert];
      const auto at = std::find_if(of_expert.begin(), of_expert.end(),
                                   [&](const RankCopies& c) { return c.rank == replica.rank; });
      replica.tokens = Share(sums[replica.expert], eplb->logical_count[replica.expert], *at);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> PlanNone(const Loads& loads, const Topology& topology,
                              const Placement& current, ParallelFor parallel_for) {
  if (absl::Status s = CheckInput(loads, topology, current); !s.ok()) return s;
  Plan plan;
  plan.topology = topology;
  plan.layers.resize(current.size());
  for (size_t l = 0; l < current.size(); ++l) {
    plan.layers[l].home_rank = current[l];
    plan.layers[l].replicas.resize(loads.shape().micro_batches);
  }
  plan.digest = DigestOf(plan);
  FillSummary(loads, current, parallel_for, plan);
  return plan;
}

absl::StatusOr<EplbPlan> PlanEplb(const Loads& loads, const Topology& topology,
                                  const Placement& current, const EplbPlanOptions& options,
                                  ParallelFor parallel_for) {
  if (absl::Status s = CheckInput(loads, topology, current); !s.ok()) return s;
  const auto start = std::chrono::steady_clock::now();
  const int experts = loads.shape().experts;
  const int layers = loads.shape().layers;
  const EplbShape shape{.num_replicas = experts + topology.replica_slots * topology.num_ranks(),
                        .num_groups = options.num_groups == 0 ? experts : options.num_groups,
                        .num_nodes = topology.nodes,
                        .num_gpus = topology.num_ranks()};
  EplbPlan result;
  result.plan.topology = topology;
  result.plan.layers.resize(layers);
  std::vector<absl::Status> statuses(layers);
  std::vector<absl::Status> even_homes(layers);
  parallel_for(layers, [&](int l) {
    statuses[l] =
        PlanEplbLayer(loads, topology, l, current[l], shape, result.plan.layers[l], even_homes[l]);
  });
  for (int l = 0; l < layers; ++l) {
    if (!statuses[l].ok()) return statuses[l];
    result.even_homes.Update(even_homes[l]);
  }
  result.plan.digest = DigestOf(result.plan);
  result.plan.summary.plan_seconds = SecondsSince(start);
  FillSummary(loads, current, parallel_for, result.plan);
  return result;
}

PolicyResult IdealResult(const Topology& topology, const PolicyResult& none) {
  PolicyResult ideal;
  ideal.policy = "ideal";
  ideal.work = none.work;
  for (LayerWork& work : ideal.work) {
    work.most_rank_pairs = static_cast<double>(work.pairs) / topology.num_ranks();
    work.most_node_pairs = static_cast<double>(work.pairs) / topology.nodes;
    work.most_cross_node_rows = work.mean_cross_node_rows;
    work.most_in_node_rows = work.mean_in_node_rows;
  }
  Summarise(topology.nodes, topology.num_ranks(), ideal);
  return ideal;
}

}  // namespace relibra

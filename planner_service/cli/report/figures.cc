#include "planner_service/cli/report/figures.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/core/expert_totals.h"

namespace relibra::cli {
namespace {

// The most that one node computes of one expert.
int64_t HottestExpertInANode(const Topology& topology, absl::Span<const uint32_t> totals,
                             absl::Span<const Replica> replicas) {
  int64_t hottest = 0;
  auto r = replicas.begin();  // ascending by (expert, rank), so a node's bridges are neighbours
  for (size_t e = 0; e < totals.size(); ++e) {
    int64_t at_home = totals[e];
    int64_t elsewhere = 0;
    int node = -1;
    for (; r != replicas.end() && r->expert == static_cast<int32_t>(e); ++r) {
      if (!r->cross_node) continue;
      if (topology.NodeOf(r->rank) != node) elsewhere = 0;
      node = topology.NodeOf(r->rank);
      elsewhere += r->tokens;
      at_home -= r->tokens;
      hottest = std::max(hottest, elsewhere);
    }
    hottest = std::max(hottest, at_home);
  }
  return hottest;
}

absl::Status AppendRankLoads(const std::vector<int64_t>& rank_loads, int layer, int micro_batch,
                             std::vector<uint32_t>& out) {
  for (size_t r = 0; r < rank_loads.size(); ++r) {
    if (rank_loads[r] > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("loads: layer ", layer, ", micro-batch ",
                                                     micro_batch, ": rank ", r, " computes ",
                                                     rank_loads[r], " pairs, more than 32 bits"));
    }
    out.push_back(static_cast<uint32_t>(rank_loads[r]));
  }
  return absl::OkStatus();
}

void AddCopies(const std::vector<Replica>& replicas, const std::vector<Replica>* before,
               ReportFigures& figures) {
  int32_t kept = 0;
  int32_t fetched = 0;
  for (const Replica& r : replicas) {
    if (r.cross_node) continue;
    const bool was_there = before != nullptr &&
                           std::any_of(before->begin(), before->end(), [&r](const Replica& other) {
                             return other.expert == r.expert && other.rank == r.rank;
                           });
    ++(was_there ? kept : fetched);
  }
  figures.copies_kept.push_back(kept);
  figures.copies_fetched.push_back(fetched);
}

void AddMoves(const Topology& topology, const LayerPlan& layer, ReportFigures& figures) {
  int32_t across = 0;
  for (const Move& move : layer.moves) {
    if (topology.NodeOf(move.from_rank) != topology.NodeOf(move.to_rank)) ++across;
  }
  figures.moves_across.push_back(across);
  figures.moves_inside.push_back(static_cast<int32_t>(layer.moves.size()) - across);
  int32_t bridges = 0;
  if (!layer.replicas.empty()) {
    const std::vector<Replica>& first = layer.replicas[0];
    bridges = static_cast<int32_t>(
        std::count_if(first.begin(), first.end(), [](const Replica& r) { return r.cross_node; }));
  }
  figures.bridges.push_back(bridges);
}

// totals: [M, E] of one layer.
void AddExperts(absl::Span<const uint32_t> totals, const LayerPlan& layer, int experts,
                ReportFigures& figures) {
  std::vector<int64_t> sums(experts);
  std::vector<double> peaks(experts);
  std::vector<int32_t> copied(experts);
  for (size_t m = 0; m < layer.replicas.size(); ++m) {
    const absl::Span<const uint32_t> row = totals.subspan(m * experts, experts);
    const double mean = static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0})) /
                        static_cast<double>(experts);
    for (int e = 0; e < experts; ++e) {
      sums[e] += row[e];
      if (mean > 0) peaks[e] = std::max(peaks[e], row[e] / mean);
    }
    int32_t last = -1;
    for (const Replica& r : layer.replicas[m]) {
      if (r.expert != last) ++copied[r.expert];
      last = r.expert;
    }
  }
  figures.expert_loads.insert(figures.expert_loads.end(), sums.begin(), sums.end());
  figures.expert_peaks.insert(figures.expert_peaks.end(), peaks.begin(), peaks.end());
  figures.expert_copied.insert(figures.expert_copied.end(), copied.begin(), copied.end());
}

}  // namespace

std::vector<int64_t> RankLoads(const Topology& topology, absl::Span<const uint32_t> totals,
                               absl::Span<const int32_t> home_rank,
                               absl::Span<const Replica> replicas) {
  std::vector<int64_t> loads(topology.num_ranks());
  for (size_t e = 0; e < totals.size(); ++e) loads[home_rank[e]] += totals[e];
  for (const Replica& r : replicas) {
    loads[home_rank[r.expert]] -= r.tokens;
    loads[r.rank] += r.tokens;
  }
  return loads;
}

Limits LimitsOf(const Topology& topology, absl::Span<const uint32_t> totals,
                absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas) {
  const std::vector<int64_t> ranks = RankLoads(topology, totals, home_rank, replicas);
  std::vector<int64_t> nodes(topology.nodes);
  for (size_t r = 0; r < ranks.size(); ++r) nodes[topology.NodeOf(static_cast<int>(r))] += ranks[r];
  const int64_t pairs = std::accumulate(nodes.begin(), nodes.end(), int64_t{0});
  if (pairs == 0) return {};
  const double mean = static_cast<double>(pairs) / topology.num_ranks();
  const double node_mean = mean * topology.gpus_per_node;
  const double rank = static_cast<double>(*std::max_element(ranks.begin(), ranks.end())) / mean;
  const double node =
      static_cast<double>(*std::max_element(nodes.begin(), nodes.end())) / node_mean;
  const double expert =
      static_cast<double>(HottestExpertInANode(topology, totals, replicas)) / node_mean;
  const double above = std::max(0.0, expert - 1);
  return {.hottest_expert = above,
          .node_bound = std::max(0.0, node - 1 - above),
          .slots = std::max(0.0, rank - node)};
}

absl::StatusOr<ReportFigures> FiguresOf(const Loads& loads, const Placement& before,
                                        const Plan& plan) {
  const LoadShape& shape = loads.shape();
  ReportFigures figures;
  for (int l = 0; l < shape.layers; ++l) {
    const absl::StatusOr<std::vector<uint32_t>> totals = SumSources(loads, l);
    if (!totals.ok()) return totals.status();
    const LayerPlan& layer = plan.layers[l];
    for (int m = 0; m < shape.micro_batches; ++m) {
      const absl::Span<const uint32_t> row =
          absl::MakeConstSpan(*totals).subspan(size_t{1} * m * shape.experts, shape.experts);
      absl::Status status =
          AppendRankLoads(RankLoads(plan.topology, row, before[l], {}), l, m, figures.loads_before);
      if (!status.ok()) return status;
      status = AppendRankLoads(RankLoads(plan.topology, row, layer.home_rank, layer.replicas[m]), l,
                               m, figures.loads_after);
      if (!status.ok()) return status;
      figures.limits.push_back(LimitsOf(plan.topology, row, layer.home_rank, layer.replicas[m]));
      AddCopies(layer.replicas[m], m > 0 ? &layer.replicas[m - 1] : nullptr, figures);
    }
    AddMoves(plan.topology, layer, figures);
    AddExperts(*totals, layer, shape.experts, figures);
  }
  return figures;
}

}  // namespace relibra::cli

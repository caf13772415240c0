#include "planner_service/core/plan_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

template <typename... Args>
absl::Status Violation(const Args&... args) {
  return absl::InternalError(absl::StrCat("plan violates its rules: ", args...));
}

// What the checker finds out about the whole plan by itself, to compare with the summary.
struct Recount {
  double imbalance_before = 0;
  double imbalance_after = 0;
  double node_imbalance_after = 0;
  int64_t moves = 0;
  int64_t cross_node_moves = 0;
  int64_t replicas = 0;
  int64_t bridges = 0;
  int64_t replicas_kept = 0;
  int64_t tokens = 0;
};

double MaxOverMean(const std::vector<int64_t>& loads) {
  int64_t most = 0;
  int64_t sum = 0;
  for (int64_t load : loads) {
    most = std::max(most, load);
    sum += load;
  }
  if (sum == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(loads.size()) / static_cast<double>(sum);
}

absl::Status CheckHomes(int layer, const Topology& topology, int experts,
                        const std::vector<int32_t>& homes) {
  if (homes.size() != static_cast<size_t>(experts)) {
    return Violation("layer ", layer, ": home_rank: expected ", experts, " experts, got ",
                     homes.size());
  }
  const int ranks = topology.num_ranks();
  std::vector<int> experts_at(ranks);
  for (int e = 0; e < experts; ++e) {
    if (homes[e] < 0 || homes[e] >= ranks) {
      return Violation("layer ", layer, ", expert ", e, ": home rank ", homes[e], " is not in 0..",
                       ranks - 1);
    }
    ++experts_at[homes[e]];
  }
  for (int r = 0; r < ranks; ++r) {
    if (experts_at[r] != experts / ranks) {
      return Violation("layer ", layer, ", rank ", r, ": home to ", experts_at[r],
                       " experts, expected ", experts / ranks);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMoves(int layer, const Topology& topology, const std::vector<int32_t>& before,
                        const LayerPlan& plan, Recount& recount) {
  size_t next = 0;
  for (int e = 0; e < static_cast<int>(before.size()); ++e) {
    const bool listed = next < plan.moves.size() && plan.moves[next].expert == e;
    const bool moved = before[e] != plan.home_rank[e];
    if (moved && !listed) {
      return Violation("layer ", layer, ", expert ", e, ": its home changes from rank ", before[e],
                       " to rank ", plan.home_rank[e], " but no move stands at its place");
    }
    if (!listed) continue;
    const Move& move = plan.moves[next++];
    if (!moved || move.from_rank != before[e] || move.to_rank != plan.home_rank[e]) {
      return Violation("layer ", layer, ", expert ", e, ": move from rank ", move.from_rank,
                       " to rank ", move.to_rank, ", but the home was rank ", before[e],
                       " and is rank ", plan.home_rank[e]);
    }
    ++recount.moves;
    if (move.from_rank / topology.gpus_per_node != move.to_rank / topology.gpus_per_node) {
      ++recount.cross_node_moves;
    }
  }
  if (next != plan.moves.size()) {
    return Violation("layer ", layer, ": moves[", next, "] names expert ", plan.moves[next].expert,
                     ", which is out of range, repeated or not ascending");
  }
  return absl::OkStatus();
}

// One replica by itself: ranges, home, node.
absl::Status CheckReplica(const std::string& where, const Topology& topology,
                          const std::vector<int32_t>& homes, const Replica& replica) {
  if (replica.expert < 0 || replica.expert >= static_cast<int>(homes.size())) {
    return Violation(where, "expert ", replica.expert, " is not in 0..", homes.size() - 1);
  }
  const std::string which = absl::StrCat(where, "expert ", replica.expert, ", rank ", replica.rank);
  if (replica.rank < 0 || replica.rank >= topology.num_ranks()) {
    return Violation(which, ": the replica's rank is not in 0..", topology.num_ranks() - 1);
  }
  const int home = homes[replica.expert];
  if (replica.rank == home) return Violation(which, ": a replica on the expert's home");
  if (replica.slot < 0 || replica.slot >= topology.replica_slots) {
    return Violation(which, ": slot ", replica.slot, " is not one of the ", topology.replica_slots,
                     " replica slots");
  }
  const bool same_node = replica.rank / topology.gpus_per_node == home / topology.gpus_per_node;
  if (same_node && replica.cross_node) {
    return Violation(which, ": marked cross_node, but it is in its home's node");
  }
  if (!same_node && !replica.cross_node) {
    return Violation(which, ": outside its home's node (home rank ", home,
                     ") and not marked cross_node");
  }
  return absl::OkStatus();
}

// Bridges of one micro-batch, as (expert, rank, slot).
using Bridges = std::vector<std::tuple<int32_t, int32_t, int32_t>>;

Bridges BridgesOf(const std::vector<Replica>& replicas) {
  Bridges bridges;
  for (const Replica& r : replicas) {
    if (r.cross_node) bridges.emplace_back(r.expert, r.rank, r.slot);
  }
  return bridges;
}

absl::Status CheckBridgesStay(const std::string& where, const Bridges& first, const Bridges& here) {
  for (size_t i = 0; i < std::max(first.size(), here.size()); ++i) {
    if (i < first.size() && i < here.size() && first[i] == here[i]) continue;
    const bool take_here = i >= first.size() || (i < here.size() && here[i] < first[i]);
    const auto& [expert, rank, slot] = take_here ? here[i] : first[i];
    return Violation(where, "expert ", expert, ", rank ", rank, ": the bridge in slot ", slot,
                     take_here ? " is not in micro-batch 0" : " of micro-batch 0 is missing");
  }
  return absl::OkStatus();
}

// The replicas of one micro-batch together: order, slots, tokens.
absl::Status CheckReplicas(const std::string& where, const Topology& topology,
                           const std::vector<int32_t>& homes,
                           const std::vector<int64_t>& expert_load,
                           const std::vector<Replica>& replicas) {
  std::vector<char> slot_used(size_t{1} * topology.num_ranks() * topology.replica_slots);
  int64_t served = 0;  // by the replicas of the expert at hand
  for (size_t i = 0; i < replicas.size(); ++i) {
    const Replica& r = replicas[i];
    if (absl::Status s = CheckReplica(where, topology, homes, r); !s.ok()) return s;
    const std::string which = absl::StrCat(where, "expert ", r.expert, ", rank ", r.rank);
    if (i > 0) {
      const Replica& last = replicas[i - 1];
      if (last.expert == r.expert && last.rank == r.rank) {
        return Violation(which, ": the rank holds the expert twice");
      }
      if (std::tie(last.expert, last.rank) > std::tie(r.expert, r.rank)) {
        return Violation(which, ": replicas are not ascending by expert and rank");
      }
      if (last.expert != r.expert) served = 0;
    }
    char& used = slot_used[size_t{1} * r.rank * topology.replica_slots + r.slot];
    if (used != 0) return Violation(which, ": slot ", r.slot, " is used twice");
    used = 1;
    served += r.tokens;
    if (served > expert_load[r.expert]) {
      return Violation(which, ": replicas serve ", served, " tokens of a load of ",
                       expert_load[r.expert]);
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> ExpertLoads(const Loads& loads, int micro_batch, int layer) {
  const absl::Span<const uint32_t> matrix = loads.At(micro_batch, layer);
  const int experts = loads.shape().experts;
  std::vector<int64_t> sums(experts);
  for (int s = 0; s < loads.shape().sources; ++s) {
    for (int e = 0; e < experts; ++e) sums[e] += matrix[size_t{1} * s * experts + e];
  }
  return sums;
}

// Replicas on a rank that held the expert in the micro-batch before too; both lists are ascending.
void CountKept(const std::vector<Replica>& before, const std::vector<Replica>& here,
               Recount& recount) {
  auto b = before.begin();
  for (const Replica& r : here) {
    while (b != before.end() && std::tie(b->expert, b->rank) < std::tie(r.expert, r.rank)) ++b;
    if (b == before.end()) return;
    if (!r.cross_node && b->expert == r.expert && b->rank == r.rank) ++recount.replicas_kept;
  }
}

void CountLoads(const Topology& topology, const std::vector<int32_t>& before,
                const std::vector<int32_t>& homes, const std::vector<int64_t>& expert_load,
                const std::vector<Replica>& replicas, Recount& recount) {
  std::vector<int64_t> rank_before(topology.num_ranks());
  std::vector<int64_t> rank_after(topology.num_ranks());
  std::vector<int64_t> node_after(topology.nodes);
  for (size_t e = 0; e < homes.size(); ++e) {
    rank_before[before[e]] += expert_load[e];
    rank_after[homes[e]] += expert_load[e];
    node_after[homes[e] / topology.gpus_per_node] += expert_load[e];
    recount.tokens += expert_load[e];
  }
  for (const Replica& r : replicas) {
    rank_after[homes[r.expert]] -= r.tokens;
    rank_after[r.rank] += r.tokens;
    ++(r.cross_node ? recount.bridges : recount.replicas);
  }
  recount.imbalance_before += MaxOverMean(rank_before);
  recount.imbalance_after += MaxOverMean(rank_after);
  recount.node_imbalance_after += MaxOverMean(node_after);
}

absl::Status CheckLayer(const Loads& loads, const Topology& topology, int layer,
                        const std::vector<int32_t>& before, const LayerPlan& plan,
                        Recount& recount) {
  const auto& [micro_batches, layers, sources, experts] = loads.shape();
  if (absl::Status s = CheckHomes(layer, topology, experts, plan.home_rank); !s.ok()) return s;
  if (absl::Status s = CheckMoves(layer, topology, before, plan, recount); !s.ok()) return s;
  if (plan.replicas.size() != static_cast<size_t>(micro_batches)) {
    return Violation("layer ", layer, ": replicas: expected ", micro_batches,
                     " micro-batches, got ", plan.replicas.size());
  }
  const Bridges bridges = BridgesOf(plan.replicas[0]);
  const int64_t bridges_so_far = recount.bridges;
  for (int m = 0; m < micro_batches; ++m) {
    const std::vector<Replica>& replicas = plan.replicas[m];
    const std::string where = absl::StrCat("layer ", layer, ", micro-batch ", m, ", ");
    const std::vector<int64_t> expert_load = ExpertLoads(loads, m, layer);
    absl::Status status = CheckReplicas(where, topology, plan.home_rank, expert_load, replicas);
    if (!status.ok()) return status;
    status = CheckBridgesStay(where, bridges, BridgesOf(replicas));
    if (!status.ok()) return status;
    CountLoads(topology, before, plan.home_rank, expert_load, replicas, recount);
    if (m > 0) CountKept(plan.replicas[m - 1], replicas, recount);
  }
  recount.bridges = bridges_so_far + static_cast<int64_t>(bridges.size());  // once a layer
  return absl::OkStatus();
}

absl::Status CheckFigure(const char* field, double said, double found) {
  if (std::abs(said - found) <= 1e-9 * std::max(1.0, std::abs(found))) return absl::OkStatus();
  return Violation("summary: ", field, " says ", said, ", recomputed ", found);
}

absl::Status CheckCount(const char* field, int64_t said, int64_t found) {
  if (said == found) return absl::OkStatus();
  return Violation("summary: ", field, " says ", said, ", recounted ", found);
}

absl::Status CheckSummary(const PlanSummary& summary, const Recount& found) {
  for (const absl::Status& status :
       {CheckFigure("imbalance_before", summary.imbalance_before, found.imbalance_before),
        CheckFigure("imbalance_after", summary.imbalance_after, found.imbalance_after),
        CheckFigure("node_imbalance_after", summary.node_imbalance_after,
                    found.node_imbalance_after),
        CheckCount("moves", summary.moves, found.moves),
        CheckCount("cross_node_moves", summary.cross_node_moves, found.cross_node_moves),
        CheckCount("replicas", summary.replicas, found.replicas),
        CheckCount("bridges", summary.bridges, found.bridges),
        CheckCount("replicas_kept", summary.replicas_kept, found.replicas_kept),
        CheckCount("tokens", summary.tokens, found.tokens)}) {
    if (!status.ok()) return status;
  }
  if (!(summary.lower_bound >= 1 && summary.lower_bound <= found.imbalance_after + 1e-9)) {
    return Violation("summary: lower_bound ", summary.lower_bound,
                     " is not between 1 and the plan's imbalance ", found.imbalance_after);
  }
  return absl::OkStatus();
}

// The arguments, which the caller answers for.
absl::Status CheckArguments(const Loads& loads, const Topology& topology,
                            const Placement& current) {
  const LoadShape& shape = loads.shape();
  if (absl::Status s = Validate(topology, shape.experts); !s.ok()) return s;
  if (shape.sources != topology.num_ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("loads: ", shape.sources,
                                                   " source ranks, but the topology has ",
                                                   topology.num_ranks(), " ranks"));
  }
  if (current.size() != static_cast<size_t>(shape.layers)) {
    return absl::InvalidArgumentError(absl::StrCat("placement before the step: expected ",
                                                   shape.layers, " layers, got ", current.size()));
  }
  for (int l = 0; l < shape.layers; ++l) {
    if (absl::Status s = CheckHomes(l, topology, shape.experts, current[l]); !s.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("placement before the step: ", s.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const Loads& loads, const Topology& topology, const Placement& current,
                       const Plan& plan, bool may_be_worse) {
  if (absl::Status s = CheckArguments(loads, topology, current); !s.ok()) return s;
  if (plan.topology != topology) return Violation("topology: not the one planned for");
  if (plan.layers.size() != current.size()) {
    return Violation("layers: expected ", current.size(), ", got ", plan.layers.size());
  }
  if (plan.digest.empty() || !std::all_of(plan.digest.begin(), plan.digest.end(), [](char c) {
        return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
      })) {
    return Violation("digest: expected lower-case hex digits, got \"", plan.digest, "\"");
  }
  Recount recount;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    absl::Status status =
        CheckLayer(loads, topology, static_cast<int>(l), current[l], plan.layers[l], recount);
    if (!status.ok()) return status;
  }
  const double parts = static_cast<double>(loads.shape().layers) * loads.shape().micro_batches;
  recount.imbalance_before /= parts;
  recount.imbalance_after /= parts;
  recount.node_imbalance_after /= parts;
  if (absl::Status s = CheckSummary(plan.summary, recount); !s.ok()) return s;
  if (!may_be_worse && recount.imbalance_after > recount.imbalance_before + 1e-9) {
    return Violation("imbalance ", recount.imbalance_after, " is worse than doing nothing, ",
                     recount.imbalance_before);
  }
  return absl::OkStatus();
}

}  // namespace relibra

#include "planner_service/trace/plan_message.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

v1::PlanSummary SummaryMessage(const PlanSummary& summary) {
  v1::PlanSummary message;
  message.set_imbalance_before(summary.imbalance_before);
  message.set_imbalance_after(summary.imbalance_after);
  message.set_lower_bound(summary.lower_bound);
  message.set_node_imbalance_after(summary.node_imbalance_after);
  message.set_plan_seconds(summary.plan_seconds);
  message.set_moves(summary.moves);
  message.set_cross_node_moves(summary.cross_node_moves);
  message.set_replicas(summary.replicas);
  message.set_bridges(summary.bridges);
  message.set_replicas_kept(summary.replicas_kept);
  message.set_tokens(summary.tokens);
  return message;
}

PlanSummary SummaryFromMessage(const v1::PlanSummary& message) {
  PlanSummary summary;
  summary.imbalance_before = message.imbalance_before();
  summary.imbalance_after = message.imbalance_after();
  summary.lower_bound = message.lower_bound();
  summary.node_imbalance_after = message.node_imbalance_after();
  summary.plan_seconds = message.plan_seconds();
  summary.moves = static_cast<int64_t>(message.moves());
  summary.cross_node_moves = static_cast<int64_t>(message.cross_node_moves());
  summary.replicas = static_cast<int64_t>(message.replicas());
  summary.bridges = static_cast<int64_t>(message.bridges());
  summary.replicas_kept = static_cast<int64_t>(message.replicas_kept());
  summary.tokens = static_cast<int64_t>(message.tokens());
  return summary;
}

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Reads one layer; `where` is "<name>: layers[<i>]".
class LayerReader {
 public:
  LayerReader(const Topology& topology, std::string where)
      : topology_(topology), where_(std::move(where)) {}

  absl::StatusOr<LayerPlan> Read(const v1::LayerPlan& message, int num_experts) {
    LayerPlan layer;
    if (absl::Status status = ReadHomes(message, num_experts, layer); !status.ok()) return status;
    if (absl::Status status = ReadMoves(message, layer); !status.ok()) return status;
    for (int m = 0; m < message.micro_batches_size(); ++m) {
      absl::Status status = ReadReplicas(message.micro_batches(m), m, layer);
      if (!status.ok()) return status;
    }
    return layer;
  }

 private:
  uint32_t num_ranks() const { return topology_.num_ranks(); }

  absl::Status ReadHomes(const v1::LayerPlan& message, int num_experts, LayerPlan& layer) {
    if (message.home_rank_size() != num_experts) {
      return Invalid(where_, ".homeRank: expected ", num_experts, " experts as in layers[0], got ",
                     message.home_rank_size());
    }
    std::vector<int> count(num_ranks());
    for (int e = 0; e < num_experts; ++e) {
      const uint32_t rank = message.home_rank(e);
      if (rank >= num_ranks()) {
        return Invalid(where_, ".homeRank[", e, "]: expected 0 to ", num_ranks() - 1, ", got ",
                       rank);
      }
      ++count[rank];
      layer.home_rank.push_back(static_cast<int32_t>(rank));
    }
    const int per_rank = num_experts / topology_.num_ranks();
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
      if (count[rank] != per_rank) {
        return Invalid(where_, ".homeRank: expected ", per_rank, " experts on every rank, got ",
                       count[rank], " on rank ", rank);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadMoves(const v1::LayerPlan& message, LayerPlan& layer) {
    for (int i = 0; i < message.moves_size(); ++i) {
      const v1::Move& move = message.moves(i);
      const std::string at = absl::StrCat(where_, ".moves[", i, "]");
      if (move.expert() >= layer.home_rank.size()) {
        return Invalid(at, ".expert: expected 0 to ", layer.home_rank.size() - 1, ", got ",
                       move.expert());
      }
      if (i > 0 && move.expert() <= message.moves(i - 1).expert()) {
        return Invalid(at, ".expert: expected more than ", message.moves(i - 1).expert(),
                       " (ascending), got ", move.expert());
      }
      const auto home = static_cast<uint32_t>(layer.home_rank[move.expert()]);
      if (move.to_rank() != home) {
        return Invalid(at, ".toRank: expected the home ", home, " of expert ", move.expert(),
                       ", got ", move.to_rank());
      }
      if (move.from_rank() >= num_ranks() || move.from_rank() == home) {
        return Invalid(at, ".fromRank: expected another rank than ", home, " below ", num_ranks(),
                       ", got ", move.from_rank());
      }
      layer.moves.push_back({.expert = static_cast<int32_t>(move.expert()),
                             .from_rank = static_cast<int32_t>(move.from_rank()),
                             .to_rank = static_cast<int32_t>(home)});
    }
    return absl::OkStatus();
  }

  absl::Status ReadReplicas(const v1::MicroBatchPlan& message, int m, LayerPlan& layer) {
    const std::string at = absl::StrCat(where_, ".microBatches[", m, "]");
    if (message.micro_batch() != static_cast<uint32_t>(m)) {
      return Invalid(at, ".microBatch: expected ", m, ", got ", message.micro_batch());
    }
    slot_taken_.assign(static_cast<size_t>(num_ranks()) * topology_.replica_slots, false);
    std::vector<Replica>& replicas = layer.replicas.emplace_back();
    for (int i = 0; i < message.replicas_size(); ++i) {
      const std::string row = absl::StrCat(at, ".replicas[", i, "]");
      absl::Status status = ReadReplica(message.replicas(i), row, layer, replicas);
      if (!status.ok()) return status;
    }
    return CheckBridges(at, layer);
  }

  absl::Status ReadReplica(const v1::Replica& message, const std::string& row,
                           const LayerPlan& layer, std::vector<Replica>& replicas) {
    if (message.expert() >= layer.home_rank.size()) {
      return Invalid(row, ".expert: expected 0 to ", layer.home_rank.size() - 1, ", got ",
                     message.expert());
    }
    if (message.rank() >= num_ranks()) {
      return Invalid(row, ".rank: expected 0 to ", num_ranks() - 1, ", got ", message.rank());
    }
    if (message.slot() >= static_cast<uint32_t>(topology_.replica_slots)) {
      return Invalid(row, ".slot: expected less than ", topology_.replica_slots,
                     " replica slots, got ", message.slot());
    }
    const Replica replica{.expert = static_cast<int32_t>(message.expert()),
                          .rank = static_cast<int32_t>(message.rank()),
                          .slot = static_cast<int32_t>(message.slot()),
                          .tokens = message.tokens(),
                          .cross_node = message.cross_node()};
    if (!replicas.empty() && std::pair(replica.expert, replica.rank) <=
                                 std::pair(replicas.back().expert, replicas.back().rank)) {
      return Invalid(row, ": expected rows ascending by (expert, rank), got (", replica.expert,
                     ", ", replica.rank, ") after (", replicas.back().expert, ", ",
                     replicas.back().rank, ")");
    }
    const int home = layer.home_rank[replica.expert];
    const bool same_node = topology_.NodeOf(replica.rank) == topology_.NodeOf(home);
    if (replica.rank == home) {
      return Invalid(row, ".rank: expected another rank than the home ", home, " of expert ",
                     replica.expert);
    }
    if (same_node == replica.cross_node) {
      return Invalid(row, ".rank: expected a rank ", same_node ? "outside" : "in", " node ",
                     topology_.NodeOf(home), " of the home of expert ", replica.expert,
                     same_node ? " for a bridge" : "", ", got ", replica.rank);
    }
    auto taken = slot_taken_[size_t{1} * replica.rank * topology_.replica_slots + replica.slot];
    if (taken) {
      return Invalid(row, ".slot: slot ", replica.slot, " of rank ", replica.rank,
                     " is already used in this micro-batch");
    }
    taken = true;
    replicas.push_back(replica);
    return absl::OkStatus();
  }

  // The last micro-batch's bridges are those of micro-batch 0.
  absl::Status CheckBridges(const std::string& at, const LayerPlan& layer) const {
    auto bridges = [](const std::vector<Replica>& replicas) {
      std::vector<Replica> found;
      for (Replica replica : replicas) {
        replica.tokens = 0;
        if (replica.cross_node) found.push_back(replica);
      }
      return found;
    };
    if (bridges(layer.replicas.back()) != bridges(layer.replicas.front())) {
      return Invalid(at, ".replicas: expected the bridges of microBatches[0]");
    }
    return absl::OkStatus();
  }

  const Topology& topology_;
  const std::string where_;
  std::vector<bool> slot_taken_;
};

absl::StatusOr<Topology> TopologyFromMessage(const v1::PlanTopology& message, int num_experts,
                                             absl::string_view name) {
  auto clamped = [](uint32_t value) {
    return static_cast<int>(std::min<uint32_t>(value, std::numeric_limits<int>::max()));
  };
  const Topology topology{.nodes = clamped(message.nodes()),
                          .gpus_per_node = clamped(message.gpus_per_node()),
                          .replica_slots = clamped(message.replica_slots())};
  if (absl::Status status = Validate(topology, num_experts); !status.ok()) {
    return Invalid(name, ": topology: ", status.message());
  }
  return topology;
}

}  // namespace

v1::Plan PlanHeader(const Plan& plan, const PlanKey& key) {
  v1::Plan message;
  message.set_job(key.job);
  message.set_step(key.step);
  message.set_policy_version(key.policy_version);
  message.set_pass(key.pass);
  message.set_ep_group(key.ep_group);
  message.set_digest(plan.digest);
  message.mutable_topology()->set_nodes(plan.topology.nodes);
  message.mutable_topology()->set_gpus_per_node(plan.topology.gpus_per_node);
  message.mutable_topology()->set_replica_slots(plan.topology.replica_slots);
  *message.mutable_summary() = SummaryMessage(plan.summary);
  return message;
}

v1::LayerPlan LayerMessage(const LayerPlan& layer, uint32_t layer_id) {
  v1::LayerPlan message;
  message.set_layer(layer_id);
  message.mutable_home_rank()->Assign(layer.home_rank.begin(), layer.home_rank.end());
  for (const Move& move : layer.moves) {
    v1::Move& row = *message.add_moves();
    row.set_expert(move.expert);
    row.set_from_rank(move.from_rank);
    row.set_to_rank(move.to_rank);
  }
  for (size_t m = 0; m < layer.replicas.size(); ++m) {
    v1::MicroBatchPlan& micro_batch = *message.add_micro_batches();
    micro_batch.set_micro_batch(m);
    micro_batch.mutable_replicas()->Reserve(static_cast<int>(layer.replicas[m].size()));
    for (const Replica& replica : layer.replicas[m]) {
      v1::Replica& row = *micro_batch.add_replicas();
      row.set_expert(replica.expert);
      row.set_rank(replica.rank);
      row.set_slot(replica.slot);
      row.set_tokens(replica.tokens);
      row.set_cross_node(replica.cross_node);
    }
  }
  return message;
}

v1::Plan PlanMessage(const Plan& plan, const PlanKey& key, absl::Span<const uint32_t> layer_ids) {
  v1::Plan message = PlanHeader(plan, key);
  message.mutable_layers()->Reserve(static_cast<int>(plan.layers.size()));
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    *message.add_layers() = LayerMessage(plan.layers[l], layer_ids[l]);
  }
  return message;
}

absl::StatusOr<Plan> PlanFromMessage(const v1::Plan& message, absl::string_view name) {
  if (message.layers_size() == 0) return Invalid(name, ": layers: expected at least 1, got 0");
  const int num_experts = message.layers(0).home_rank_size();
  absl::StatusOr<Topology> topology = TopologyFromMessage(message.topology(), num_experts, name);
  if (!topology.ok()) return topology.status();
  Plan plan;
  plan.topology = *topology;
  plan.digest = message.digest();
  plan.summary = SummaryFromMessage(message.summary());
  for (int l = 0; l < message.layers_size(); ++l) {
    const v1::LayerPlan& layer = message.layers(l);
    const std::string where = absl::StrCat(name, ": layers[", l, "]");
    if (l > 0 && layer.layer() <= message.layers(l - 1).layer()) {
      return Invalid(where, ".layer: expected more than ", message.layers(l - 1).layer(),
                     " (ascending), got ", layer.layer());
    }
    if (layer.micro_batches_size() != message.layers(0).micro_batches_size()) {
      return Invalid(where, ".microBatches: expected ", message.layers(0).micro_batches_size(),
                     " as in layers[0], got ", layer.micro_batches_size());
    }
    absl::StatusOr<LayerPlan> read = LayerReader(*topology, where).Read(layer, num_experts);
    if (!read.ok()) return read.status();
    plan.layers.push_back(*std::move(read));
  }
  return plan;
}

}  // namespace relibra

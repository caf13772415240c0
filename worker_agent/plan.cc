#include "worker_agent/plan.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra::agent {
namespace {

// Where in a plan something is wrong, for messages.
struct Place {
  uint32_t layer_id = 0;
  int micro_batch = -1;

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(
        micro_batch < 0
            ? absl::StrCat("plan, layer ", layer_id, ": ", what)
            : absl::StrCat("plan, layer ", layer_id, ", micro-batch ", micro_batch, ": ", what));
  }
};

absl::StatusOr<std::vector<int32_t>> ReadHomes(const v1::LayerPlan& message,
                                               const GroupShape& shape, const Place& place) {
  if (message.home_rank_size() != shape.experts) {
    return place.Error(
        absl::StrCat("homes of ", message.home_rank_size(), " experts, expected ", shape.experts));
  }
  std::vector<int32_t> homes;
  std::vector<int> held(shape.ranks(), 0);
  for (int e = 0; e < shape.experts; ++e) {
    const uint32_t rank = message.home_rank(e);
    if (rank >= static_cast<uint32_t>(shape.ranks())) {
      return place.Error(
          absl::StrCat("expert ", e, " has home rank ", rank, ", expected below ", shape.ranks()));
    }
    if (++held[rank] > shape.home_slots()) {
      return place.Error(absl::StrCat("rank ", rank, " is home to more than ", shape.home_slots(),
                                      " experts (expert ", e, " is one too many)"));
    }
    homes.push_back(static_cast<int32_t>(rank));
  }
  return homes;
}

absl::StatusOr<std::vector<Replica>> ReadReplicas(const v1::MicroBatchPlan& message,
                                                  const GroupShape& shape,
                                                  const std::vector<int32_t>& homes,
                                                  const Place& place) {
  std::vector<Replica> replicas;
  std::set<std::pair<int, int>> slots;
  for (const v1::Replica& r : message.replicas()) {
    const std::string name = absl::StrCat("replica of expert ", r.expert(), " on rank ", r.rank());
    if (r.expert() >= static_cast<uint32_t>(shape.experts) ||
        r.rank() >= static_cast<uint32_t>(shape.ranks()) ||
        r.slot() >= static_cast<uint32_t>(shape.replica_slots)) {
      return place.Error(absl::StrCat(name, ", slot ", r.slot(), ": expected expert below ",
                                      shape.experts, ", rank below ", shape.ranks(),
                                      ", slot below ", shape.replica_slots));
    }
    const Replica replica{static_cast<int>(r.expert()), static_cast<int>(r.rank()),
                          static_cast<int>(r.slot()), r.tokens(), r.cross_node()};
    const int home = homes[replica.expert];
    if (replica.rank == home) return place.Error(absl::StrCat(name, ": that is its home"));
    if (replica.bridge == (shape.NodeOf(replica.rank) == shape.NodeOf(home))) {
      return place.Error(absl::StrCat(
          name, replica.bridge ? ": a bridge inside its home's node" : ": not in its home's node"));
    }
    if (!slots.emplace(replica.rank, replica.slot).second) {
      return place.Error(absl::StrCat(name, ": slot ", replica.slot, " is used twice"));
    }
    if (!replicas.empty() && std::tie(replicas.back().expert, replicas.back().rank) >=
                                 std::tie(replica.expert, replica.rank)) {
      return place.Error(absl::StrCat(name, ": expected ascending order by expert and rank"));
    }
    replicas.push_back(replica);
  }
  return replicas;
}

absl::StatusOr<std::vector<Quota>> ReadQuotas(const v1::MicroBatchPlan& message,
                                              const GroupShape& shape,
                                              const std::vector<int32_t>& homes,
                                              const std::vector<Replica>& replicas, int rank,
                                              const Place& place) {
  std::vector<Quota> quotas;
  const auto add = [&](uint32_t expert, uint32_t instance, uint32_t tokens) -> absl::Status {
    const std::string name = absl::StrCat("split of expert ", expert, " to rank ", instance);
    if (expert >= static_cast<uint32_t>(shape.experts)) {
      return place.Error(absl::StrCat(name, ": expected an expert below ", shape.experts));
    }
    bool replicated = false;
    bool is_instance = static_cast<uint32_t>(homes[expert]) == instance;
    for (const Replica& replica : replicas) {
      if (static_cast<uint32_t>(replica.expert) != expert) continue;
      replicated = true;
      is_instance |= static_cast<uint32_t>(replica.rank) == instance;
    }
    if (!replicated) return place.Error(absl::StrCat(name, ": the expert has no replica"));
    if (!is_instance) return place.Error(absl::StrCat(name, ": that rank holds no instance"));
    quotas.push_back({static_cast<int>(expert), static_cast<int>(instance), tokens});
    return absl::OkStatus();
  };
  for (const v1::SplitColumns& columns : message.split_columns()) {
    if (columns.source_rank() != static_cast<uint32_t>(rank)) continue;
    if (columns.experts_size() != columns.ranks_size() ||
        columns.experts_size() != columns.tokens_size()) {
      return place.Error(absl::StrCat("split columns of source rank ", rank, " have ",
                                      columns.experts_size(), ", ", columns.ranks_size(), " and ",
                                      columns.tokens_size(), " rows, expected equal numbers"));
    }
    for (int i = 0; i < columns.experts_size(); ++i) {
      absl::Status s = add(columns.experts(i), columns.ranks(i), columns.tokens(i));
      if (!s.ok()) return s;
    }
  }
  for (const v1::Split& split : message.splits()) {
    if (split.source_rank() != static_cast<uint32_t>(rank)) continue;
    absl::Status s = add(split.expert(), split.rank(), split.tokens());
    if (!s.ok()) return s;
  }
  for (size_t i = 1; i < quotas.size(); ++i) {
    if (std::tie(quotas[i - 1].expert, quotas[i - 1].rank) >=
        std::tie(quotas[i].expert, quotas[i].rank)) {
      return place.Error(absl::StrCat("split of expert ", quotas[i].expert, " to rank ",
                                      quotas[i].rank,
                                      ": expected ascending order by expert and rank"));
    }
  }
  return quotas;
}

// Bridges are the same in every micro-batch of a layer.
absl::Status CheckBridges(const LayerPlan& layer, Place place) {
  const auto bridges_of = [](const MicroBatchPlan& micro_batch) {
    std::vector<std::tuple<int, int, int>> bridges;
    for (const Replica& r : micro_batch.replicas) {
      if (r.bridge) bridges.emplace_back(r.expert, r.rank, r.slot);
    }
    return bridges;
  };
  for (size_t m = 1; m < layer.micro_batches.size(); ++m) {
    if (bridges_of(layer.micro_batches[m]) != bridges_of(layer.micro_batches[0])) {
      place.micro_batch = static_cast<int>(m);
      return place.Error("its bridges are not those of micro-batch 0");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerPlan> ReadLayer(const v1::LayerPlan& message, const GroupShape& shape,
                                    int rank) {
  Place place{message.layer()};
  LayerPlan layer;
  absl::StatusOr<std::vector<int32_t>> homes = ReadHomes(message, shape, place);
  if (!homes.ok()) return homes.status();
  layer.home_rank = *std::move(homes);
  for (const v1::MicroBatchPlan& m : message.micro_batches()) {
    place.micro_batch = static_cast<int>(layer.micro_batches.size());
    if (m.micro_batch() != static_cast<uint32_t>(place.micro_batch)) {
      return place.Error(absl::StrCat("is numbered ", m.micro_batch()));
    }
    auto replicas = ReadReplicas(m, shape, layer.home_rank, place);
    if (!replicas.ok()) return replicas.status();
    auto quotas = ReadQuotas(m, shape, layer.home_rank, *replicas, rank, place);
    if (!quotas.ok()) return quotas.status();
    layer.micro_batches.push_back({*std::move(replicas), *std::move(quotas)});
  }
  if (absl::Status s = CheckBridges(layer, Place{message.layer()}); !s.ok()) return s;
  return layer;
}

}  // namespace

absl::StatusOr<Plan> ReadPlan(const v1::Plan& message, const GroupShape& shape, int rank) {
  const v1::PlanTopology& topology = message.topology();
  if (topology.nodes() != static_cast<uint32_t>(shape.nodes) ||
      topology.gpus_per_node() != static_cast<uint32_t>(shape.gpus_per_node) ||
      topology.replica_slots() != static_cast<uint32_t>(shape.replica_slots)) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan is for ", topology.nodes(), " nodes x ", topology.gpus_per_node(),
                     " GPUs with ", topology.replica_slots(), " replica slots, this group has ",
                     shape.nodes, " x ", shape.gpus_per_node, " with ", shape.replica_slots));
  }
  if (message.layers_size() != shape.layers()) {
    return absl::InvalidArgumentError(absl::StrCat("plan has ", message.layers_size(),
                                                   " layers, this group has ", shape.layers()));
  }
  if (message.digest().empty()) return absl::InvalidArgumentError("plan has no digest");
  Plan plan;
  plan.id = {message.step(), message.policy_version(),
             message.pass().empty() ? "update" : message.pass()};
  plan.digest = message.digest();
  for (int l = 0; l < shape.layers(); ++l) {
    if (message.layers(l).layer() != shape.layer_ids[l]) {
      return absl::InvalidArgumentError(absl::StrCat("plan's layer at position ", l, " is ",
                                                     message.layers(l).layer(), ", expected ",
                                                     shape.layer_ids[l]));
    }
    absl::StatusOr<LayerPlan> layer = ReadLayer(message.layers(l), shape, rank);
    if (!layer.ok()) return layer.status();
    if (l > 0 && layer->micro_batches.size() != plan.layers[0].micro_batches.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan, layer ", message.layers(l).layer(), ": ", layer->micro_batches.size(),
          " micro-batches, the layers before have ", plan.layers[0].micro_batches.size()));
    }
    plan.layers.push_back(*std::move(layer));
  }
  return plan;
}

}  // namespace relibra::agent

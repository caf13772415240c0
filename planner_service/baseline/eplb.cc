#include "planner_service/baseline/eplb.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

// Where packing put an item: the pack, and how many items came there before it.
struct Packed {
  int pack = 0;
  int place = 0;
};

// Equally many items into each pack.
std::vector<Packed> PackEvenly(const std::vector<float>& weights, int packs) {
  const int items = static_cast<int>(weights.size());
  const int room = items / packs;
  std::vector<Packed> packed(items);
  if (room == 1) {
    for (int i = 0; i < items; ++i) packed[i].pack = i;
    return packed;
  }
  std::vector<int> order(items);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weights[a] > weights[b]; });
  std::vector<float> pack_weight(packs);
  std::vector<int> pack_items(packs);
  for (int item : order) {
    int lightest = -1;
    for (int p = 0; p < packs; ++p) {
      if (pack_items[p] == room) continue;
      if (lightest < 0 || pack_weight[p] < pack_weight[lightest]) lightest = p;
    }
    packed[item] = {.pack = lightest, .place = pack_items[lightest]++};
    pack_weight[lightest] += weights[item];
  }
  return packed;
}

// The experts in the order of their nodes: [num_nodes * experts a node].
std::vector<int32_t> PackOntoNodes(absl::Span<const float> weights, int groups, int nodes) {
  const int group_size = static_cast<int>(weights.size()) / groups;
  std::vector<float> group_weight(groups);
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < group_size; ++i) group_weight[g] += weights[g * group_size + i];
  }
  const std::vector<Packed> packed = PackEvenly(group_weight, nodes);
  std::vector<int32_t> by_node(weights.size());
  for (int g = 0; g < groups; ++g) {
    const int first = (packed[g].pack * (groups / nodes) + packed[g].place) * group_size;
    for (int i = 0; i < group_size; ++i) by_node[first + i] = g * group_size + i;
  }
  return by_node;
}

// Copies of one node: counts [experts of the node], each >= 1, and the expert of each copy, the
// additional ones in the order in which they were made.
struct Copies {
  std::vector<int32_t> count;
  std::vector<int> expert;
};

Copies MakeCopies(const std::vector<float>& weights, int copies) {
  Copies made;
  made.count.assign(weights.size(), 1);
  made.expert.resize(weights.size());
  std::iota(made.expert.begin(), made.expert.end(), 0);
  while (static_cast<int>(made.expert.size()) < copies) {
    int hottest = 0;
    for (int e = 1; e < static_cast<int>(weights.size()); ++e) {
      if (weights[e] / static_cast<float>(made.count[e]) >
          weights[hottest] / static_cast<float>(made.count[hottest])) {
        hottest = e;
      }
    }
    ++made.count[hottest];
    made.expert.push_back(hottest);
  }
  return made;
}

absl::Status CheckDivides(const char* what, int number, const char* by_what, int by) {
  if (by >= 1 && number >= by && number % by == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "eplb: ", what, ": ", number, " does not divide evenly over ", by_what, ", ", by));
}

absl::Status CheckShape(int experts, const EplbShape& shape) {
  for (const absl::Status& status :
       {CheckDivides("experts", experts, "num_groups", shape.num_groups),
        CheckDivides("num_groups", shape.num_groups, "num_nodes", shape.num_nodes),
        CheckDivides("num_gpus", shape.num_gpus, "num_nodes", shape.num_nodes),
        CheckDivides("num_replicas", shape.num_replicas, "num_gpus", shape.num_gpus)}) {
    if (!status.ok()) return status;
  }
  if (shape.num_replicas < experts) {
    return absl::InvalidArgumentError(absl::StrCat("eplb: num_replicas: expected at least the ",
                                                   experts, " experts, got ", shape.num_replicas));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EplbLayer> RunEplb(absl::Span<const float> weights, const EplbShape& shape) {
  const int experts = static_cast<int>(weights.size());
  const bool global = shape.num_nodes >= 1 && shape.num_groups % shape.num_nodes != 0;
  const int nodes = global ? 1 : shape.num_nodes;
  const int groups = global ? 1 : shape.num_groups;
  absl::Status status = CheckShape(experts, {shape.num_replicas, groups, nodes, shape.num_gpus});
  if (!status.ok()) return status;
  const int node_experts = experts / nodes;
  const int node_copies = shape.num_replicas / nodes;
  const int node_gpus = shape.num_gpus / nodes;
  const int gpu_copies = shape.num_replicas / shape.num_gpus;

  const std::vector<int32_t> by_node = PackOntoNodes(weights, groups, nodes);
  EplbLayer layer;
  layer.physical_to_logical.resize(shape.num_replicas);
  layer.logical_count.resize(experts);
  std::vector<float> node_weights(node_experts);
  std::vector<float> copy_weights(node_copies);
  for (int n = 0; n < nodes; ++n) {
    const int32_t* node_ids = by_node.data() + size_t{1} * n * node_experts;
    for (int e = 0; e < node_experts; ++e) node_weights[e] = weights[node_ids[e]];
    const Copies copies = MakeCopies(node_weights, node_copies);
    for (int e = 0; e < node_experts; ++e) layer.logical_count[node_ids[e]] = copies.count[e];
    for (int c = 0; c < node_copies; ++c) {
      const int e = copies.expert[c];
      copy_weights[c] = node_weights[e] / static_cast<float>(copies.count[e]);
    }
    const std::vector<Packed> packed = PackEvenly(copy_weights, node_gpus);
    for (int c = 0; c < node_copies; ++c) {
      const int slot = n * node_copies + packed[c].pack * gpu_copies + packed[c].place;
      layer.physical_to_logical[slot] = node_ids[copies.expert[c]];
    }
  }
  return layer;
}

}  // namespace relibra

#include "planner_service/core/static_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

constexpr int kNoCap = std::numeric_limits<int>::max();
// Loads that differ by less are the same load summed in another order.
constexpr double kRounding = 1e-12;
// How near to its lower bound the fullest GPU is left alone.
constexpr double kCloseEnough = 1e-4;
// Small layers, for which a layout costs little, are laid out several times, with other groups in
// the heaviest node, when the fullest GPU stays above its lower bound by this share.
constexpr double kWorthTrying = 0.01;
constexpr int kTriedSlots = 256;  // slots laid out in all tries together
constexpr int kMostTries = 8;
// A swap must lower the heaviest node by this share of its load.
constexpr double kLeastGain = 1e-9;

absl::Status Validate(const StaticShape& shape) {
  const auto error = [](const char* field, auto... rest) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", rest...));
  };
  if (shape.experts < 1) return error("experts", "expected >= 1, got ", shape.experts);
  if (shape.groups < 1) return error("num_groups", "expected >= 1, got ", shape.groups);
  if (shape.nodes < 1) return error("num_nodes", "expected >= 1, got ", shape.nodes);
  if (shape.gpus < 1) return error("num_gpus", "expected >= 1, got ", shape.gpus);
  if (shape.physical < shape.experts) {
    return error("num_replicas", "expected at least the ", shape.experts, " experts, got ",
                 shape.physical);
  }
  if (shape.physical % shape.gpus != 0) {
    return error("num_replicas", shape.physical, " replicas do not divide evenly over ", shape.gpus,
                 " GPUs");
  }
  if (shape.groups % shape.nodes == 0) {
    if (shape.experts % shape.groups != 0) {
      return error("num_groups", shape.experts, " experts do not divide evenly into ", shape.groups,
                   " groups");
    }
    if (shape.gpus % shape.nodes != 0) {
      return error("num_gpus", shape.gpus, " GPUs do not divide evenly over ", shape.nodes,
                   " nodes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StaticPlacer> StaticPlacer::Create(const StaticShape& shape) {
  if (absl::Status status = Validate(shape); !status.ok()) return status;
  StaticShape effective = shape;
  if (shape.groups % shape.nodes != 0) effective.groups = effective.nodes = 1;
  return StaticPlacer(effective);
}

StaticPlacer::StaticPlacer(const StaticShape& shape)
    : shape_(shape),
      layout_(shape.experts, shape.physical, shape.nodes, shape.gpus),
      group_load_(shape.groups),
      node_load_(shape.nodes),
      node_groups_(shape.groups),
      node_used_(shape.nodes),
      sorted_(shape.groups),
      order_(shape.experts) {}

absl::Status StaticPlacer::Place(absl::Span<const double> weight,
                                 absl::Span<int64_t> physical_to_logical,
                                 absl::Span<int64_t> replica_count) {
  double total = 0;
  for (int e = 0; e < shape_.experts; ++e) {
    if (!std::isfinite(weight[e]) || weight[e] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expert ", e, ": expected a finite load >= 0, got ", weight[e]));
    }
    total += weight[e];
  }
  if (!std::isfinite(total)) return absl::InvalidArgumentError("the sum of loads overflows");

  PackGroups(weight);
  WriteOrder();
  layout_.Assign(order_, weight);
  layout_.Replicate(kNoCap);
  layout_.PackFreely();
  const double published = layout_.MaxLoad() * (1 + kRounding);

  if (layout_.slots_per_gpu() <= layout_.experts_per_node()) {
    const bool swapped = SwapGroups();
    WriteOrder();
    const double load = LayOutApart(weight, published);
    if (load <= published) {
      layout_.Write(physical_to_logical, replica_count);
      TryOtherNodes(weight, published, load, physical_to_logical, replica_count);
      return absl::OkStatus();
    }
    if (swapped) {
      // Nodes as even as can be, but worse GPUs: back to nodes as DeepSeek's algorithm packs them.
      PackGroups(weight);
      WriteOrder();
      if (LayOutApart(weight, published) <= published) {
        layout_.Write(physical_to_logical, replica_count);
        return absl::OkStatus();
      }
    }
  }
  layout_.Replicate(kNoCap);
  layout_.PackFreely();
  layout_.Refine(/*apart=*/false, layout_.Floor() * (1 + kCloseEnough));
  layout_.SpreadDuplicates();
  layout_.Write(physical_to_logical, replica_count);
  return absl::OkStatus();
}

double StaticPlacer::LayOutApart(absl::Span<const double> weight, double published) {
  layout_.Assign(order_, weight);
  layout_.Replicate(layout_.gpus_per_node());
  layout_.PackApart();
  layout_.Refine(/*apart=*/true, std::min(published, layout_.Floor() * (1 + kCloseEnough)));
  return layout_.MaxLoad();
}

void StaticPlacer::TryOtherNodes(absl::Span<const double> weight, double published, double best,
                                 absl::Span<int64_t> physical_to_logical,
                                 absl::Span<int64_t> replica_count) {
  const int node_groups = shape_.groups / shape_.nodes;
  const int most_tries = std::min(kTriedSlots / shape_.physical, kMostTries);
  if (node_groups == 1 || most_tries == 0 || best <= layout_.Floor() * (1 + kWorthTrying)) return;
  const int heaviest =
      static_cast<int>(std::max_element(node_load_.begin(), node_load_.end()) - node_load_.begin());
  tries_.clear();
  for (int place = heaviest * node_groups; place < (heaviest + 1) * node_groups; ++place) {
    for (int other = 0; other < shape_.groups; ++other) {
      const int node = other / node_groups;
      if (node == heaviest) continue;
      const double difference = group_load_[node_groups_[place]] - group_load_[node_groups_[other]];
      const double load =
          std::max(node_load_[heaviest] - difference, node_load_[node] + difference);
      if (load / layout_.gpus_per_node() < best) tries_.push_back({load, place, other});
    }
  }
  std::sort(tries_.begin(), tries_.end());
  for (size_t i = 0; i < tries_.size() && i < static_cast<size_t>(most_tries); ++i) {
    const auto [node_load, place, other] = tries_[i];
    std::swap(node_groups_[place], node_groups_[other]);
    WriteOrder();
    std::swap(node_groups_[place], node_groups_[other]);
    const double load = LayOutApart(weight, published);
    if (load >= best * (1 - kLeastGain)) continue;
    best = load;
    layout_.Write(physical_to_logical, replica_count);
  }
}

void StaticPlacer::PackGroups(absl::Span<const double> weight) {
  const int group_size = shape_.experts / shape_.groups;
  const int node_groups = shape_.groups / shape_.nodes;
  for (int g = 0; g < shape_.groups; ++g) {
    const auto first = weight.begin() + g * group_size;
    group_load_[g] = std::accumulate(first, first + group_size, 0.0);
  }
  std::fill(node_load_.begin(), node_load_.end(), 0.0);
  std::iota(sorted_.begin(), sorted_.end(), 0);
  if (node_groups == 1) {  // nothing to choose
    node_groups_ = sorted_;
    node_load_ = group_load_;
    return;
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](int a, int b) {
    return group_load_[a] != group_load_[b] ? group_load_[a] > group_load_[b] : a < b;
  });
  std::fill(node_used_.begin(), node_used_.end(), 0);
  for (const int group : sorted_) {
    int best = -1;
    for (int n = 0; n < shape_.nodes; ++n) {
      if (node_used_[n] < node_groups && (best < 0 || node_load_[n] < node_load_[best])) best = n;
    }
    node_groups_[best * node_groups + node_used_[best]++] = group;
    node_load_[best] += group_load_[group];
  }
}

bool StaticPlacer::SwapGroups() {
  const int node_groups = shape_.groups / shape_.nodes;
  const int most_swaps = 4 * shape_.groups;
  bool any = false;
  for (int step = 0; step < most_swaps && node_groups > 1; ++step) {
    const int heaviest = static_cast<int>(std::max_element(node_load_.begin(), node_load_.end()) -
                                          node_load_.begin());
    double best = node_load_[heaviest] * (1 - kLeastGain);
    int best_place = -1, best_other = -1;
    for (int place = heaviest * node_groups; place < (heaviest + 1) * node_groups; ++place) {
      for (int other = 0; other < shape_.groups; ++other) {
        const int node = other / node_groups;
        const double difference =
            group_load_[node_groups_[place]] - group_load_[node_groups_[other]];
        if (node == heaviest || difference <= 0) continue;
        const double load =
            std::max(node_load_[heaviest] - difference, node_load_[node] + difference);
        if (load >= best) continue;
        best = load;
        best_place = place;
        best_other = other;
      }
    }
    if (best_place < 0) break;
    const double difference =
        group_load_[node_groups_[best_place]] - group_load_[node_groups_[best_other]];
    node_load_[heaviest] -= difference;
    node_load_[best_other / node_groups] += difference;
    std::swap(node_groups_[best_place], node_groups_[best_other]);
    any = true;
  }
  return any;
}

void StaticPlacer::WriteOrder() {
  const int group_size = shape_.experts / shape_.groups;
  for (int i = 0; i < shape_.experts; ++i) {
    order_[i] = node_groups_[i / group_size] * group_size + i % group_size;
  }
}

}  // namespace relibra

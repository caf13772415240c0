#include "planner_service/core/bounds.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace relibra {
namespace {

// The least load of the heaviest of `groups` groups of equally many experts: of the 1 + groups
// (k-1) hottest experts some group has k, and its others are no lighter than the lightest of all.
// loads: [E], descending; experts divide evenly over groups.
int64_t HeaviestGroup(absl::Span<const uint32_t> loads, size_t groups) {
  const size_t size = loads.size() / groups;
  int64_t rest = 0;  // the size - k lightest
  for (size_t i = 1; i < size; ++i) rest += loads[loads.size() - i];
  int64_t most = 0;
  for (size_t k = 1; k <= size; ++k) {
    const size_t last = groups * (k - 1);
    int64_t group = rest;
    for (size_t i = 0; i < k; ++i) group += loads[last - i];
    most = std::max(most, group);
    if (k < size) rest -= loads[loads.size() - (size - k)];
  }
  return most;
}

}  // namespace

double LowerBound(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::optional<int> bridges) {
  std::vector<uint32_t> loads(totals.begin(), totals.end());
  std::sort(loads.begin(), loads.end(), std::greater<>());
  int64_t total = 0;
  for (uint32_t tokens : loads) total += tokens;
  if (total == 0) return 1;
  const int64_t ranks = topology.num_ranks();
  int64_t groups = ranks, servers = 1;
  if (topology.replica_slots > 0) {
    groups = topology.nodes;
    servers = topology.gpus_per_node;
    if (topology.nodes > 1) servers += std::min<int64_t>(bridges.value_or(servers), servers);
  }
  const auto ceiling = [](int64_t tokens, int64_t parts) { return (tokens + parts - 1) / parts; };
  const int64_t least =
      std::max(ceiling(total, ranks), ceiling(HeaviestGroup(loads, groups), servers));
  return static_cast<double>(least) * static_cast<double>(ranks) / static_cast<double>(total);
}

}  // namespace relibra

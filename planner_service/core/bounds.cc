#include "planner_service/core/bounds.h"

#include <algorithm>

namespace relibra {

double LowerBound(const Topology& topology, absl::Span<const uint32_t> totals,
                  std::optional<int> bridges) {
  int64_t total = 0, hottest = 0;
  for (uint32_t tokens : totals) {
    total += tokens;
    hottest = std::max<int64_t>(hottest, tokens);
  }
  if (total == 0) return 1;
  const int64_t ranks = topology.num_ranks();
  int64_t instances = 1;
  if (topology.replica_slots > 0) {
    instances = topology.gpus_per_node;
    if (topology.nodes > 1) instances += std::min<int64_t>(bridges.value_or(instances), instances);
  }
  const auto ceiling = [](int64_t tokens, int64_t parts) { return (tokens + parts - 1) / parts; };
  const int64_t least = std::max(ceiling(total, ranks), ceiling(hottest, instances));
  return static_cast<double>(least) * static_cast<double>(ranks) / static_cast<double>(total);
}

}  // namespace relibra

#include "planner_service/server/split_cache.h"

#include "planner_service/core/split.h"

namespace relibra::server {
namespace {

// Splits come ascending by (expert, source rank, rank), so each source rank's rows come in the
// order that its columns need.
std::vector<v1::SplitColumns> Columns(absl::Span<const Split> splits, int num_ranks) {
  std::vector<int> rows(num_ranks);
  for (const Split& split : splits) ++rows[split.source_rank];
  std::vector<v1::SplitColumns> columns(num_ranks);
  for (int s = 0; s < num_ranks; ++s) {
    columns[s].set_source_rank(s);
    columns[s].mutable_experts()->Reserve(rows[s]);
    columns[s].mutable_ranks()->Reserve(rows[s]);
    columns[s].mutable_tokens()->Reserve(rows[s]);
  }
  for (const Split& split : splits) {
    v1::SplitColumns& column = columns[split.source_rank];
    column.add_experts(split.expert);
    column.add_ranks(split.rank);
    column.add_tokens(split.tokens);
  }
  return columns;
}

}  // namespace

std::shared_ptr<const SplitCache::LayerSplits> SplitCache::Get(const Plan& plan, const Loads& loads,
                                                               int layer) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [index, splits] : held_) {
    if (index == layer) return splits;
  }
  auto made = std::make_shared<LayerSplits>();
  const LayerPlan& layer_plan = plan.layers[layer];
  std::vector<Split> splits;
  for (size_t m = 0; m < layer_plan.replicas.size(); ++m) {
    SplitTokens(plan.topology, loads.At(static_cast<int>(m), layer), layer_plan.home_rank,
                layer_plan.replicas[m], splits);
    made->push_back(Columns(splits, plan.topology.num_ranks()));
  }
  held_.emplace_front(layer, made);
  if (held_.size() > kLayersHeld) held_.pop_back();
  return made;
}

}  // namespace relibra::server

#include "planner_service/trace/plan_splits.h"

#include <cstddef>
#include <vector>

#include "planner_service/core/split.h"

namespace relibra {

void AddSplits(const Topology& topology, const LayerPlan& layer, const Loads& loads,
               int layer_index, v1::LayerPlan& message) {
  std::vector<Split> splits;
  for (size_t m = 0; m < layer.replicas.size(); ++m) {
    SplitTokens(topology, loads.At(static_cast<int>(m), layer_index), layer.home_rank,
                layer.replicas[m], splits);
    v1::MicroBatchPlan& micro_batch = *message.mutable_micro_batches(static_cast<int>(m));
    micro_batch.mutable_splits()->Reserve(static_cast<int>(splits.size()));
    for (const Split& split : splits) {
      v1::Split& row = *micro_batch.add_splits();
      row.set_expert(split.expert);
      row.set_source_rank(split.source_rank);
      row.set_rank(split.rank);
      row.set_tokens(split.tokens);
    }
  }
}

}  // namespace relibra

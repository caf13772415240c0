#include "planner_service/core/cost_model.h"

#include <algorithm>

namespace relibra {

StepTime ModelStepTime(const PolicyResult& result, const ExpertSizes& sizes, const GpuRates& rates,
                       double exposure) {
  constexpr double kPassesOfGemm = 3;  // forward, gradient of the input, gradient of the weights
  constexpr double kPassesOfAllToAll = 4;  // dispatch and combine, forward and backward
  const double across = rates.cross_node_bytes_second;
  const double inside = rates.in_node_bytes_second;
  StepTime time;
  for (const LayerWork& work : result.work) {
    time.compute_seconds +=
        kPassesOfGemm * sizes.flops_per_token * work.most_rank_pairs / rates.gemm_flops;
    time.all_to_all_seconds +=
        kPassesOfAllToAll * sizes.token_bytes *
        std::max(work.most_cross_node_rows / across, work.most_in_node_rows / inside);
    time.copy_seconds +=
        exposure *
        (sizes.weight_bytes * work.most_fetched + sizes.gradient_bytes * work.most_returned) /
        inside;
  }
  const StepWork& step = result.step;
  const double home_bytes = sizes.weight_bytes + sizes.optimizer_bytes;
  const double bridge_bytes = sizes.weight_bytes + sizes.gradient_bytes;
  time.move_seconds =
      exposure * ((bridge_bytes * static_cast<double>(step.most_bridges) +
                   home_bytes * static_cast<double>(step.most_cross_node_moves)) /
                      across +
                  home_bytes * static_cast<double>(step.most_in_node_moves) / inside);
  return time;
}

}  // namespace relibra

// How long a whole batch takes to plan, on one thread: sums, homes, replicas, and the splits of
// every (layer, micro-batch). Not a test. Layers are independent, so n cores divide the times by
// nearly n.
//
//   relibra_core_benchmark [--benchmark_filter=DeepSeek]

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/split.h"

namespace relibra {
namespace {

struct Batch {
  Topology topology;
  int layers;
  int experts;
  int micro_batches;
};

constexpr Batch kQwen30B{{8, 8, 2}, 48, 128, 64};
constexpr Batch kDeepSeekV3{{8, 8, 2}, 58, 256, 64};
// Ranks double from row to row, micro-batches and layers stay: is the time linear in the loads?
constexpr Batch kRanks16{{2, 8, 2}, 8, 256, 16};
constexpr Batch kRanks32{{4, 8, 2}, 8, 256, 16};
constexpr Batch kRanks64{{8, 8, 2}, 8, 256, 16};
constexpr Batch kRanks128{{16, 8, 2}, 8, 256, 16};
constexpr Batch kRanks256{{32, 8, 2}, 8, 256, 16};

constexpr double kPairsARank = 8192.0 * 8;  // 8,192 tokens, 8 experts each

// Lognormal popularity of a layer's experts (sigma 1.0), of each of 32 domains (0.8) and of each
// rank's sequences (0.5).
Loads LoadsOf(const Batch& batch) {
  constexpr int kDomains = 32;
  const int ranks = batch.topology.num_ranks();
  Loads loads = *Loads::Create({batch.micro_batches, batch.layers, ranks, batch.experts});
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](float sigma) { return std::exp(sigma * normal(random)); };
  std::vector<float> domain(size_t{1} * kDomains * batch.experts), share(batch.experts);
  for (int l = 0; l < batch.layers; ++l) {
    std::vector<float> layer(batch.experts);
    for (float& x : layer) x = draw(1.0F);
    for (float& x : domain) x = draw(0.8F);
    for (int m = 0; m < batch.micro_batches; ++m) {
      for (int s = 0; s < ranks; ++s) {
        const float* own = &domain[random() % kDomains * batch.experts];
        float sum = 0;
        for (int e = 0; e < batch.experts; ++e) {
          share[e] = layer[e] * own[e] * draw(0.5F);
          sum += share[e];
        }
        for (int e = 0; e < batch.experts; ++e) {
          const double capped = std::min(share[e] / sum, 1.0F / 8);
          loads.Mutable(m, l)[s * batch.experts + e] = static_cast<uint32_t>(capped * kPairsARank);
        }
      }
    }
  }
  return loads;
}

void PlanBatch(benchmark::State& state, const Batch& batch, Effort effort, bool bridges) {
  const Loads loads = LoadsOf(batch);
  const Placement current = LinearPlacement(batch.topology, batch.layers, batch.experts);
  PlanOptions options;
  options.effort = effort;
  if (!bridges) options.bridges = 0;
  std::vector<Split> splits;
  double imbalance = 0, split_rows = 0;
  for (auto _ : state) {
    absl::StatusOr<Plan> plan = PlanStep(loads, batch.topology, current, options, InOrder);
    if (!plan.ok()) {
      state.SkipWithError(plan.status().ToString().c_str());
      return;
    }
    split_rows = 0;
    for (int l = 0; l < batch.layers; ++l) {
      for (int m = 0; m < batch.micro_batches; ++m) {
        SplitTokens(batch.topology, loads.At(m, l), plan->layers[l].home_rank,
                    plan->layers[l].replicas[m], splits);
        split_rows += static_cast<double>(splits.size());
      }
    }
    imbalance = plan->summary.imbalance_after;
  }
  state.counters["imbalance"] = imbalance;
  state.counters["splits"] = split_rows;
  state.counters["loads"] = static_cast<double>(loads.counts().size());
}

void SplitBatch(benchmark::State& state, const Batch& batch) {
  const Loads loads = LoadsOf(batch);
  const Placement current = LinearPlacement(batch.topology, batch.layers, batch.experts);
  const absl::StatusOr<Plan> plan = PlanStep(loads, batch.topology, current, {}, InOrder);
  if (!plan.ok()) {
    state.SkipWithError(plan.status().ToString().c_str());
    return;
  }
  std::vector<Split> splits;
  for (auto _ : state) {
    for (int l = 0; l < batch.layers; ++l) {
      for (int m = 0; m < batch.micro_batches; ++m) {
        SplitTokens(batch.topology, loads.At(m, l), plan->layers[l].home_rank,
                    plan->layers[l].replicas[m], splits);
      }
    }
  }
}

#define RELIBRA_PLAN_BENCHMARK(name, ...) \
  BENCHMARK_CAPTURE(PlanBatch, name, __VA_ARGS__)->Unit(benchmark::kMillisecond)

RELIBRA_PLAN_BENCHMARK(Qwen30B, kQwen30B, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Qwen30BWithBridges, kQwen30B, Effort::kFast, true);
RELIBRA_PLAN_BENCHMARK(DeepSeekV3, kDeepSeekV3, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(DeepSeekV3WithBridges, kDeepSeekV3, Effort::kFast, true);
BENCHMARK_CAPTURE(SplitBatch, Qwen30B, kQwen30B)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(SplitBatch, DeepSeekV3, kDeepSeekV3)->Unit(benchmark::kMillisecond);
RELIBRA_PLAN_BENCHMARK(Ranks16, kRanks16, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Ranks32, kRanks32, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Ranks64, kRanks64, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Ranks128, kRanks128, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Ranks256, kRanks256, Effort::kFast, false);
RELIBRA_PLAN_BENCHMARK(Ranks64Thorough, kRanks64, Effort::kThorough, false);

}  // namespace
}  // namespace relibra

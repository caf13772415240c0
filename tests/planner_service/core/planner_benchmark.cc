// How long planning takes, whole and by phase, on synthetic loads of the size of known models.
//
//   build/release/bin/relibra_core_benchmark [--benchmark_filter=Qwen]
//
// One thread; BM_PlanStep is the whole step, the phases are of one layer (BM_LevelNodes: of one
// micro-batch). Loads are lognormal over experts and vary from micro-batch to micro-batch; they are
// made once a size and shared by its benchmarks.

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "planner_service/core/bridge.h"
#include "planner_service/core/expert_totals.h"
#include "planner_service/core/layer_planner.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/reorder.h"
#include "planner_service/core/split.h"
#include "tests/planner_service/core/plan_measures.h"
#include "tests/planner_service/core/random_instances.h"

namespace relibra {
namespace {

struct Size {
  const char* name;
  Topology topology;
  int micro_batches, layers, experts;
  int pairs_a_rank;  // (token, choice) pairs of a source rank in a micro-batch
};

constexpr Size kQwen = {"Qwen3-30B-A3B", {8, 8, 2}, 64, 48, 128, 8192 * 8};
constexpr Size kDeepSeek = {"DeepSeek-V3", {8, 8, 2}, 64, 58, 256, 8192 * 8};
constexpr Size kMixtral = {"Mixtral-8x7B", {1, 8, 2}, 64, 32, 8, 8192 * 2};
constexpr Size kThousand = {"1024-ranks", {128, 8, 2}, 4, 4, 1024, 8192 * 8};

// Roughly normal, mean 0, variance 1.
double Normal(Draw& draw) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += draw.Unit();
  return sum;
}

Instance MakeInstance(const Size& size) {
  Draw draw(1);
  const int ranks = size.topology.num_ranks();
  Instance x{size.topology, *Loads::Create({size.micro_batches, size.layers, ranks, size.experts}),
             LinearPlacement(size.topology, size.layers, size.experts)};
  std::vector<double> popular(size.experts), here(size.experts);
  for (int l = 0; l < size.layers; ++l) {
    for (double& p : popular) p = std::exp(0.8 * Normal(draw));
    for (int m = 0; m < size.micro_batches; ++m) {
      double sum = 0;
      for (int e = 0; e < size.experts; ++e) {
        here[e] = popular[e] * std::exp(0.2 * Normal(draw));
        sum += here[e];
      }
      for (double& share : here) share *= size.pairs_a_rank / sum;
      uint32_t* count = x.loads.Mutable(m, l).data();
      for (int s = 0; s < ranks; ++s) {
        for (int e = 0; e < size.experts; ++e) {
          // 0.5 to 1.5 times the mean, from a multiplicative hash
          const uint32_t noise = (static_cast<uint32_t>(s) * 2654435761u + e * 40503u + m) >> 8;
          *count++ = static_cast<uint32_t>(here[e] * (0.5 + (noise & 0xffff) / 65536.0));
        }
      }
    }
  }
  return x;
}

const Instance& InstanceOf(const Size& size) {
  static auto* const instances = new std::map<std::string, Instance>();
  const auto at = instances->find(size.name);
  if (at != instances->end()) return at->second;
  return instances->emplace(size.name, MakeInstance(size)).first->second;
}

void BM_PlanStep(benchmark::State& state, const Size& size, const PlanOptions& options) {
  const Instance& x = InstanceOf(size);
  double imbalance = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Plan plan = *PlanStep(x.loads, x.topology, x.current, options, InOrder);
    imbalance = plan.summary.imbalance_after;
  }
  state.counters["imbalance"] = imbalance;
}

void BM_SumSources(benchmark::State& state, const Size& size) {
  const Instance& x = InstanceOf(size);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(SumSources(x.loads, 0));
  state.SetBytesProcessed(state.iterations() * sizeof(uint32_t) * x.loads.counts().size() /
                          size.layers);
}

void BM_HomeChoices(benchmark::State& state, const Size& size, bool every_budget) {
  const Instance& x = InstanceOf(size);
  const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        HomeChoices(x.topology, totals, x.current[0], Effort::kFast, every_budget, 0));
  }
}

void BM_ReplicasAndBridges(benchmark::State& state, const Size& size, int bridges) {
  const Instance& x = InstanceOf(size);
  const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
  PlanOptions options;
  options.bridges = bridges;
  const std::vector<int32_t> homes =
      HomeChoices(x.topology, totals, x.current[0], Effort::kFast, false, 0).back().home_rank;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        PlanReplicasAndBridges(x.topology, totals, x.current[0], homes, options));
  }
}

void BM_LevelNodes(benchmark::State& state, const Size& size) {
  const Instance& x = InstanceOf(size);
  const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
  const std::vector<Bridge> bridges = ChooseBridges(x.topology, totals, x.current[0], 1);
  std::vector<int64_t> tokens;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(LevelNodes(x.topology, absl::MakeConstSpan(totals).first(size.experts),
                                        x.current[0], bridges, tokens));
  }
}

void BM_SplitTokens(benchmark::State& state, const Size& size) {
  const Instance& x = InstanceOf(size);
  const std::vector<uint32_t> totals = TotalsOf(x.loads, 0);
  const LayerPlan plan =
      PlanReplicasAndBridges(x.topology, totals, x.current[0], x.current[0], {}).plan;
  std::vector<Split> splits;
  for ([[maybe_unused]] auto _ : state) {
    for (int m = 0; m < size.micro_batches; ++m) {
      SplitTokens(x.topology, x.loads.At(m, 0), plan.home_rank, plan.replicas[m], splits);
      benchmark::DoNotOptimize(splits.data());
    }
  }
}

PlanOptions NoBridges() {
  PlanOptions options;
  options.bridges = 0;
  return options;
}

PlanOptions ATenthMoves(const Size& size) {
  PlanOptions options;
  options.max_moves = int64_t{1} * size.layers * size.experts / 10;
  return options;
}

#define RELIBRA_TIMED(function, ...) \
  BENCHMARK_CAPTURE(function, __VA_ARGS__)->Unit(benchmark::kMillisecond)->UseRealTime()

#define RELIBRA_BENCHMARKS(name, size)                                       \
  RELIBRA_TIMED(BM_PlanStep, name, size, PlanOptions{});                     \
  RELIBRA_TIMED(BM_PlanStep, name##_no_bridges, size, NoBridges());          \
  RELIBRA_TIMED(BM_PlanStep, name##_a_tenth_moves, size, ATenthMoves(size)); \
  RELIBRA_TIMED(BM_SumSources, name, size);                                  \
  RELIBRA_TIMED(BM_HomeChoices, name, size, false);                          \
  RELIBRA_TIMED(BM_HomeChoices, name##_every_budget, size, true);            \
  RELIBRA_TIMED(BM_ReplicasAndBridges, name##_no_bridges, size, 0);          \
  RELIBRA_TIMED(BM_ReplicasAndBridges, name, size, 1);                       \
  RELIBRA_TIMED(BM_SplitTokens, name, size);                                 \
  RELIBRA_TIMED(BM_LevelNodes, name, size)

RELIBRA_BENCHMARKS(Qwen3_30B, kQwen);
RELIBRA_BENCHMARKS(DeepSeek_V3, kDeepSeek);
RELIBRA_BENCHMARKS(Mixtral_8x7B, kMixtral);
RELIBRA_BENCHMARKS(Ranks_1024, kThousand);

}  // namespace
}  // namespace relibra

BENCHMARK_MAIN();

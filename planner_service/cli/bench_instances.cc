#include "planner_service/cli/bench_instances.h"

namespace relibra::cli {
namespace {

constexpr BenchInstance kQuality[] = {
    {.name = "1x8/128/16", .nodes = 1},
    {.name = "2x8/128/16", .nodes = 2},
    {.name = "4x8/128/32", .nodes = 4, .micro_batches = 32},
    {.name = "8x8/128/16", .nodes = 8},
    {.name = "8x8/256/32", .nodes = 8, .experts = 256, .micro_batches = 32},
    {.name = "8x8/512/16", .nodes = 8, .experts = 512, .top_k = 10, .tokens_per_rank = 4096},
    {.name = "16x8/256/16", .nodes = 16, .experts = 256},
};

constexpr BenchInstance kSpeed[] = {
    {.name = "qwen3-30b-a3b", .nodes = 8, .micro_batches = 64, .layers = 48},
    {.name = "deepseek-v3", .nodes = 8, .experts = 256, .micro_batches = 64, .layers = 58},
    // 256 experts live on at most 256 ranks: 1,024 ranks hold four EP groups.
    {.name = "1024-ranks", .nodes = 32, .experts = 256, .layers = 61, .ep_groups = 4},
};

}  // namespace

absl::Span<const BenchInstance> QualityInstances() { return kQuality; }
absl::Span<const BenchInstance> SpeedInstances() { return kSpeed; }

}  // namespace relibra::cli

// The batches that `relibra bench` plans.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_BENCH_INSTANCES_H_
#define RELIBRA_PLANNER_SERVICE_CLI_BENCH_INSTANCES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace relibra::cli {

struct BenchInstance {
  absl::string_view name;  // nodes x GPUs, experts, micro-batches
  int nodes = 1;
  int gpus_per_node = 8;
  int experts = 128;
  int micro_batches = 16;
  int layers = 6;
  int top_k = 8;
  int tokens_per_rank = 8192;
  int ep_groups = 1;  // of nodes x GPUs each, planned one after another
};

// For quality: a sample of layers, several seeds.
absl::Span<const BenchInstance> QualityInstances();
// For speed: whole batches of real models.
absl::Span<const BenchInstance> SpeedInstances();

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_BENCH_INSTANCES_H_

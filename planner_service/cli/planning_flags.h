// The flags that several commands share, and what they stand for.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_PLANNING_FLAGS_H_
#define RELIBRA_PLANNER_SERVICE_CLI_PLANNING_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"
#include "planner_service/trace/trace.h"

namespace relibra::cli {

// --trace, --moe-layers, --nodes, --gpus-per-node, --replica-slots, --placement
struct BatchFlags {
  std::string trace;
  std::vector<uint32_t> moe_layers;
  Topology topology{.nodes = 1, .gpus_per_node = 8, .replica_slots = 2};
  std::string placement;
};
void AddBatchFlags(CLI::App& command, BatchFlags& flags);

// --effort, --bridges, --max-moves, --move-cost, --replica-cost, --seed, --threads
struct PlannerFlags {
  std::string effort = "fast";
  std::string bridges = "auto";
  std::string max_moves;
  double move_cost = 0;
  double replica_cost = 0;
  uint64_t seed = 0;
  int threads = 0;
};
void AddPlannerFlags(CLI::App& command, PlannerFlags& flags);

// INVALID_ARGUMENT naming the flag.
absl::StatusOr<PlanOptions> OptionsOf(const PlannerFlags& flags);

// A batch to plan: loads with missing routes spread, and the homes before the step.
struct Batch {
  CountTrace trace;
  Placement current;
  double missing_share = 0;  // of the tokens; their routes were spread by the layer's mean
};

// Reads what the flags name, and prints the trace's warnings. INVALID_ARGUMENT naming file, field
// and index when something does not fit.
absl::StatusOr<Batch> ReadBatch(const BatchFlags& flags);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_PLANNING_FLAGS_H_

// Runs what `relibra bench` shows.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_BENCH_RUNNER_H_
#define RELIBRA_PLANNER_SERVICE_CLI_BENCH_RUNNER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner_service/cli/bench_instances.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/skew.h"
#include "planner_service/core/planner.h"

namespace relibra::cli {

// A way to plan that gets a row of its own: "none", "eplb", or one of the planner's.
struct BenchPolicy {
  std::string name;
  enum class Kind { kNone, kEplb, kRelibra } kind = Kind::kRelibra;
  PlanOptions options;  // of kRelibra
  // The plan starts from the homes that the batch before (other sequences of the same job) was
  // given, and may move this share of the experts.
  std::optional<double> move_share = std::nullopt;
};

// One row: means over the seeds, but for the times.
struct BenchRow {
  std::string instance;
  std::string skew;
  std::string policy;
  double imbalance = 0;
  double bound = 0;  // of the planner's policies; 0: none is known
  double copies_per_node = 0;
  double kept_share = 0;    // of the copies, those that the micro-batch before had: not fetched
  double moves = 0;         // a layer
  double bridges = 0;       // a layer
  double milliseconds = 0;  // of the whole batch, mean over seeds of the best repeat
  int64_t plan_bytes = 0;   // by which the process grew while planning, most over the seeds
  int64_t load_bytes = 0;   // of the loads alone, of one EP group
  // One EPLB call for one micro-batch's loads, all layers, one thread: ours, and the public one (0
  // where the user points at none).
  double eplb_call_ms = 0;
  double public_eplb_call_ms = 0;
};

struct BenchSetup {
  int replica_slots = 2;
  int seeds = 3;    // 1..seeds
  int repeats = 1;  // of each plan, for its time
  bool verify = false;
  std::string public_eplb;  // path of its Python file; empty: not timed
};

// All rows of one instance, in the order of `policies`. INTERNAL when a plan breaks a rule.
// say: told what is being done.
absl::StatusOr<std::vector<BenchRow>> RunInstance(
    const BenchInstance& instance, const std::string& skew_name, const Skew& skew,
    const std::vector<BenchPolicy>& policies, const BenchSetup& setup, const ThreadPool& threads,
    const std::function<void(const std::string&)>& say);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_BENCH_RUNNER_H_

#include "planner_service/cli/bench_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/baseline/baseline_plan.h"
#include "planner_service/baseline/eplb.h"
#include "planner_service/cli/peak_memory.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/policies.h"
#include "planner_service/cli/public_eplb.h"
#include "planner_service/trace/generator.h"

namespace relibra::cli {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

absl::StatusOr<Batch> MakeBatch(const BenchInstance& instance, const Skew& skew,
                                const Topology& topology, uint64_t seed,
                                const ThreadPool& threads) {
  if (absl::Status s = Validate(topology, instance.experts); !s.ok()) return s;
  GeneratorOptions options;
  options.num_ranks = topology.num_ranks();
  options.micro_batches = instance.micro_batches;
  options.layers = instance.layers;
  options.experts = instance.experts;
  options.top_k = instance.top_k;
  options.tokens_per_bin = instance.tokens_per_rank;
  options.seed = seed;
  skew.ApplyTo(options);
  absl::StatusOr<CountTrace> trace = GenerateCounts(options, threads);
  if (!trace.ok()) return trace.status();
  return Batch{.trace = *std::move(trace),
               .current = LinearPlacement(topology, instance.layers, instance.experts),
               .missing_share = 0};
}

EplbShape EplbShapeOf(const Topology& topology, int experts) {
  return {.num_replicas = experts + topology.num_ranks() * topology.replica_slots,
          .num_groups = experts,
          .num_nodes = topology.nodes,
          .num_gpus = topology.num_ranks()};
}

// The loads of micro-batch 0: [layers][experts]. Engines that follow the loads call EPLB with such.
std::vector<std::vector<float>> FirstMicroBatch(const Loads& loads) {
  const LoadShape& shape = loads.shape();
  std::vector<std::vector<float>> weights(shape.layers, std::vector<float>(shape.experts));
  for (int l = 0; l < shape.layers; ++l) {
    const absl::Span<const uint32_t> matrix = loads.At(0, l);
    for (size_t i = 0; i < matrix.size(); ++i) {
      weights[l][i % shape.experts] += static_cast<float>(matrix[i]);
    }
  }
  return weights;
}

absl::StatusOr<double> TimeEplbCall(const std::vector<std::vector<float>>& weights,
                                    const EplbShape& shape) {
  const auto start = Clock::now();
  for (const std::vector<float>& layer_weights : weights) {
    const absl::StatusOr<EplbLayer> layer = RunEplb(layer_weights, shape);
    if (!layer.ok()) return layer.status();
  }
  return MillisecondsSince(start);
}

struct TimedPlan {
  Plan plan;
  double milliseconds = 0;
  int64_t plan_bytes = 0;
};

absl::StatusOr<TimedPlan> PlanTimed(const BenchPolicy& policy, const Batch& batch,
                                    const Topology& topology, int repeats,
                                    const ThreadPool& threads) {
  const Policy kind = policy.kind == BenchPolicy::Kind::kNone   ? Policy::kNone
                      : policy.kind == BenchPolicy::Kind::kEplb ? Policy::kEplb
                                                                : Policy::kRelibra;
  TimedPlan timed;
  timed.milliseconds = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    timed.plan = Plan();  // so that memory holds one plan at a time
    ResetPeakMemory();
    const int64_t before = PeakMemoryBytes();
    absl::StatusOr<Plan> plan =
        PlanBatch(kind, batch, topology, policy.options, /*must_apply=*/false, threads);
    if (!plan.ok()) return plan.status();
    timed.plan_bytes = std::max(timed.plan_bytes, PeakMemoryBytes() - before);
    timed.plan = *std::move(plan);
    // A baseline's own figure leaves out the work of summing up its effects.
    timed.milliseconds = std::min(timed.milliseconds, 1e3 * timed.plan.summary.plan_seconds);
  }
  return timed;
}

// Adds one seed's figures to a row of sums.
absl::Status AddToRow(const BenchPolicy& policy, const Batch& batch, const Topology& topology,
                      const BenchSetup& setup, const ThreadPool& threads, BenchRow& row) {
  absl::StatusOr<TimedPlan> timed = PlanTimed(policy, batch, topology, setup.repeats, threads);
  if (!timed.ok()) return timed.status();
  const PlanSummary& summary = timed->plan.summary;
  const LoadShape& shape = batch.trace.loads.shape();
  const bool ours = policy.kind == BenchPolicy::Kind::kRelibra;
  if (setup.verify && ours) {
    if (absl::Status s = VerifyPlan(Policy::kRelibra, batch, timed->plan); !s.ok()) return s;
  }
  row.imbalance += summary.imbalance_after;
  if (ours) row.bound += summary.lower_bound;
  row.copies_per_node += static_cast<double>(summary.replicas) /
                         (static_cast<double>(shape.layers) * shape.micro_batches * topology.nodes);
  row.moves += static_cast<double>(summary.moves) / shape.layers;
  row.bridges += static_cast<double>(summary.bridges) / shape.layers;
  row.milliseconds += timed->milliseconds;
  row.plan_bytes = std::max(row.plan_bytes, timed->plan_bytes);
  return absl::OkStatus();
}

// Times are of all EP groups together.
void SumsToMeans(int seeds, int ep_groups, BenchRow& row) {
  for (double* sum : {&row.imbalance, &row.bound, &row.copies_per_node, &row.moves, &row.bridges}) {
    *sum /= static_cast<double>(seeds) * ep_groups;
  }
  row.milliseconds /= seeds;
  row.eplb_call_ms /= seeds;
}

// A seed for each EP group of each trace.
uint64_t SeedOf(int seed, int ep_group) {
  return static_cast<uint64_t>(seed) + (static_cast<uint64_t>(ep_group) << 32);
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunInstance(
    const BenchInstance& instance, const std::string& skew_name, const Skew& skew,
    const std::vector<BenchPolicy>& policies, const BenchSetup& setup, const ThreadPool& threads,
    const std::function<void(const std::string&)>& say) {
  const Topology topology{.nodes = instance.nodes,
                          .gpus_per_node = instance.gpus_per_node,
                          .replica_slots = setup.replica_slots};
  std::vector<BenchRow> rows(policies.size());
  double public_eplb_call_ms = 0;
  for (int run = 0; run < setup.seeds * instance.ep_groups; ++run) {
    const int seed = 1 + run / instance.ep_groups;
    const std::string what = absl::StrCat(instance.name, " ", skew_name, ", seed ", seed);
    say(absl::StrCat(what, ": generating"));
    const absl::StatusOr<Batch> batch =
        MakeBatch(instance, skew, topology, SeedOf(seed, run % instance.ep_groups), threads);
    if (!batch.ok()) return batch.status();
    const auto weights = FirstMicroBatch(batch->trace.loads);
    const EplbShape eplb_shape = EplbShapeOf(topology, instance.experts);
    const absl::StatusOr<double> eplb_call_ms = TimeEplbCall(weights, eplb_shape);
    if (!eplb_call_ms.ok()) return eplb_call_ms.status();
    if (run == 0 && !setup.public_eplb.empty()) {
      say(absl::StrCat(what, ": public EPLB"));
      const absl::StatusOr<double> ms = TimePublicEplb(setup.public_eplb, weights, eplb_shape);
      if (!ms.ok()) return ms.status();
      public_eplb_call_ms = *ms * instance.ep_groups;
    }
    for (size_t p = 0; p < policies.size(); ++p) {
      say(absl::StrCat(what, ": ", policies[p].name));
      absl::Status status = AddToRow(policies[p], *batch, topology, setup, threads, rows[p]);
      if (!status.ok()) return status;
      rows[p].eplb_call_ms += *eplb_call_ms;
      rows[p].load_bytes = static_cast<int64_t>(4 * batch->trace.loads.counts().size());
    }
  }
  for (size_t p = 0; p < policies.size(); ++p) {
    rows[p].instance = std::string(instance.name);
    rows[p].skew = skew_name;
    rows[p].policy = policies[p].name;
    rows[p].public_eplb_call_ms = public_eplb_call_ms;
    SumsToMeans(setup.seeds, instance.ep_groups, rows[p]);
  }
  return rows;
}

}  // namespace relibra::cli

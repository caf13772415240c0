#include "planner_service/cli/bench_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/baseline/baseline_plan.h"
#include "planner_service/baseline/eplb.h"
#include "planner_service/cli/peak_memory.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/cli/policies.h"
#include "planner_service/cli/public_eplb.h"
#include "planner_service/core/split.h"
#include "planner_service/trace/generator.h"

namespace relibra::cli {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

absl::StatusOr<Batch> MakeBatch(const BenchInstance& instance, const Skew& skew,
                                const Topology& topology, uint64_t seed, uint64_t number,
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
  options.batch = number;
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

// Splits every (layer, micro-batch), as agents are told, and drops the rows: what it takes, in ms.
double TimeSplits(const Batch& batch, const Plan& plan, const ThreadPool& threads) {
  const auto start = Clock::now();
  threads(static_cast<int>(plan.layers.size()), [&](int l) {
    std::vector<Split> splits;
    const LayerPlan& layer = plan.layers[l];
    for (size_t m = 0; m < layer.replicas.size(); ++m) {
      SplitTokens(plan.topology, batch.trace.loads.At(static_cast<int>(m), l), layer.home_rank,
                  layer.replicas[m], splits);
    }
  });
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
  PlanOptions options = policy.options;
  if (policy.move_share) {
    const LoadShape& shape = batch.trace.loads.shape();
    options.max_moves =
        std::llround(*policy.move_share * shape.layers * static_cast<double>(shape.experts));
  }
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
        PlanBatch(kind, batch, topology, options, /*must_apply=*/false, threads);
    if (!plan.ok()) return plan.status();
    timed.plan_bytes = std::max(timed.plan_bytes, PeakMemoryBytes() - before);
    timed.plan = *std::move(plan);
    // A baseline's own figure leaves out the work of summing up its effects.
    double milliseconds = 1e3 * timed.plan.summary.plan_seconds;
    if (kind == Policy::kRelibra) milliseconds += TimeSplits(batch, timed.plan, threads);
    timed.milliseconds = std::min(timed.milliseconds, milliseconds);
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
  if (summary.replicas > 0) {
    row.kept_share += static_cast<double>(summary.replicas_kept) / summary.replicas;
  }
  row.moves += static_cast<double>(summary.moves) / shape.layers;
  row.bridges += static_cast<double>(summary.bridges) / shape.layers;
  row.milliseconds += timed->milliseconds;
  row.plan_bytes = std::max(row.plan_bytes, timed->plan_bytes);
  return absl::OkStatus();
}

// The next batch of the same job, with the homes that `before` is planned with.
absl::StatusOr<Batch> NextBatch(const BenchInstance& instance, const Skew& skew,
                                const Topology& topology, uint64_t seed, const Batch& before,
                                const PlanOptions& options, const ThreadPool& threads) {
  const absl::StatusOr<Plan> plan =
      PlanBatch(Policy::kRelibra, before, topology, options, /*must_apply=*/false, threads);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<Batch> next = MakeBatch(instance, skew, topology, seed, 1, threads);
  if (!next.ok()) return next;
  for (size_t l = 0; l < plan->layers.size(); ++l) next->current[l] = plan->layers[l].home_rank;
  return next;
}

// Times are of all EP groups together.
void SumsToMeans(int seeds, int ep_groups, BenchRow& row) {
  for (double* sum : {&row.imbalance, &row.bound, &row.copies_per_node, &row.kept_share, &row.moves,
                      &row.bridges}) {
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
    const uint64_t trace_seed = SeedOf(seed, run % instance.ep_groups);
    const absl::StatusOr<Batch> batch = MakeBatch(instance, skew, topology, trace_seed, 0, threads);
    if (!batch.ok()) return batch.status();
    absl::StatusOr<Batch> next = absl::NotFoundError("no policy asks for it");
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
      if (policies[p].move_share && !next.ok()) {
        next =
            NextBatch(instance, skew, topology, trace_seed, *batch, policies[p].options, threads);
        if (!next.ok()) return next.status();
      }
      const Batch& planned = policies[p].move_share ? *next : *batch;
      absl::Status status = AddToRow(policies[p], planned, topology, setup, threads, rows[p]);
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

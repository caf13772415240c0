// The figures of a report that no other command has: loads of single ranks and experts, copies and
// moves by layer and micro-batch, and what keeps the plan from perfect balance.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_REPORT_FIGURES_H_
#define RELIBRA_PLANNER_SERVICE_CLI_REPORT_FIGURES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"

namespace relibra::cli {

// Where the imbalance above 1 of one (layer, micro-batch) comes from. With the mean rank load as
// unit, G ranks a node, and loads as the plan computes them (bridges at work):
//
//   hottest expert   what one node computes of one expert / G, the most, above 1: copies inside the
//                    node cannot spread it further, only another bridge can
//   node bound       load of the most loaded node / G, above 1 and above the hottest expert: copies
//                    inside the node cannot go below it, only other homes can
//   slots            the rest: the most loaded rank above the mean rank of the most loaded node;
//                    too few replica slots, copies not worth their cost, or odd tokens
//
// The three are at least 0 and sum to imbalance - 1. All are 0 without tokens.
struct Limits {
  double hottest_expert = 0;
  double node_bound = 0;
  double slots = 0;
};

// totals: [E], the (layer, micro-batch)'s tokens of each expert; home_rank: [E].
Limits LimitsOf(const Topology& topology, absl::Span<const uint32_t> totals,
                absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas);

// [P], (token, choice) pairs that each rank computes: totals, home_rank and replicas as above; no
// replicas: every expert at home.
std::vector<int64_t> RankLoads(const Topology& topology, absl::Span<const uint32_t> totals,
                               absl::Span<const int32_t> home_rank,
                               absl::Span<const Replica> replicas);

// Entry (l, m) of an [L, M] array is l * M + m. Loads are in (token, choice) pairs.
struct ReportFigures {
  std::vector<uint32_t> loads_before;   // [L, M, P], under the homes before the step
  std::vector<uint32_t> loads_after;    // [L, M, P], under the plan
  std::vector<int64_t> expert_loads;    // [L, E], over all micro-batches
  std::vector<double> expert_peaks;     // [L, E], most in one micro-batch / its mean expert
  std::vector<int32_t> expert_copied;   // [L, E], micro-batches in which it has a copy or a bridge
  std::vector<int32_t> copies_kept;     // [L, M], replicas that the micro-batch before had too
  std::vector<int32_t> copies_fetched;  // [L, M], the others; bridges are in neither
  std::vector<int32_t> moves_inside;    // [L], homes that change inside their node
  std::vector<int32_t> moves_across;    // [L], to another node
  std::vector<int32_t> bridges;         // [L]
  std::vector<Limits> limits;           // [L, M]
};

// before: homes [L][E] as they were; plan: of these loads. INVALID_ARGUMENT when an expert's load,
// or a rank's, does not fit into 32 bits.
absl::StatusOr<ReportFigures> FiguresOf(const Loads& loads, const Placement& before,
                                        const Plan& plan);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_REPORT_FIGURES_H_

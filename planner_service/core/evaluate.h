// What a plan does to the ranks of its EP group, in the figures by which policies are compared.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_EVALUATE_H_
#define RELIBRA_PLANNER_SERVICE_CORE_EVALUATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// What one (layer, micro-batch) asks of the ranks. "Pairs" are (token, choice) pairs, "rows" are
// hidden states that travel: a token crosses once to each other node that computes one of its
// choices, to the rank there with the sender's local number, and goes on once to each rank that
// does. How many rows some pairs make is estimated from counts alone: of T tokens of K choices
// each, of which a share p goes to some place, T (1 - (1 - p)^K) go there at least once (choices
// taken as independent).
struct LayerWork {
  int64_t pairs = 0;                // over all ranks
  double most_rank_pairs = 0;       // computed by the most loaded rank
  double most_node_pairs = 0;       // computed by the most loaded node
  int64_t cross_rank_pairs = 0;     // computed on another rank than they come from
  int64_t cross_node_pairs = 0;     // computed in another node than they come from
  double most_cross_node_rows = 0;  // that one rank sends to, or receives from, other nodes
  double mean_cross_node_rows = 0;  // the same of the mean rank (sent; as many are received)
  double most_in_node_rows = 0;     // that one rank sends to, or receives from, its own node
  double mean_in_node_rows = 0;
  int32_t replicas = 0;       // bridges not counted
  int32_t fetched = 0;        // of them: not on that rank in the micro-batch before
  int32_t most_fetched = 0;   // that one rank receives, or sends
  int32_t most_returned = 0;  // gradients of replicas that one rank sends, or receives
};

// What the step asks once.
struct StepWork {
  int64_t moves = 0;
  int64_t cross_node_moves = 0;
  int64_t bridges = 0;
  int64_t most_in_node_moves = 0;     // that one rank sends, or receives
  int64_t most_cross_node_moves = 0;  // that one rank sends, or receives
  int64_t most_bridges = 0;           // that one rank sends, or receives
};

struct PolicyResult {
  std::string policy;
  double imbalance_mean = 1;  // max / mean rank load, over all (layer, micro-batch)
  double imbalance_p99 = 1;  // nearest rank: at least 99 % of (layer, micro-batch) are this or less
  double imbalance_max = 1;
  double node_imbalance_mean = 1;  // max / mean node load, as computed (bridges at work)
  double copies_per_node = 0;      // replicas in use a node and (layer, micro-batch)
  int64_t pairs = 0;
  int64_t copies = 0;  // replicas in use, over all (layer, micro-batch), bridges not counted
  int64_t fetched = 0;
  int64_t cross_rank_pairs = 0;
  int64_t cross_node_pairs = 0;
  StepWork step;
  std::vector<LayerWork> work;  // [L * M], entry l * M + m
};

struct EvaluateOptions {
  int top_k = 1;  // K; 1 counts every pair as a row of its own
  // The replicas are the same in every micro-batch and return their gradients once, after the last.
  bool replicas_stay = false;
};

// `plan` must be one that CheckPlan accepts for these loads, or the plan of a baseline: homes need
// not be spread evenly, and slots are not looked at. Tokens of a replicated expert are split by
// SplitTokens. O(L M (S E + P^2)). The same result whatever the ParallelFor.
PolicyResult Evaluate(const std::string& policy, const Loads& loads, const Plan& plan,
                      const EvaluateOptions& options, ParallelFor parallel_for);

// The means over `work`, as Evaluate makes them; for policies that are no plan. `nodes`, `ranks`:
// of the EP group.
void Summarise(int nodes, int ranks, PolicyResult& result);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_EVALUATE_H_

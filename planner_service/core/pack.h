// Packing: which sequences share a micro-batch, and on which rank each is trained, chosen so that
// all micro-batches load the experts alike. One placement then fits them all, at no communication.
//
// Problem. Node n of layer l computes Y[m][l][n] pairs of micro-batch m; what replication inside
// nodes cannot mend is max over n of Y / mean. Choose micro-batches for the sequences so that its
// mean over (m, l) is small. Which rank of a micro-batch dispatches a sequence does not change Y:
// ranks are chosen for equal tokens and equal attention (tokens squared).
//
// Method. Deal the sequences, longest first, each to the micro-batch with the fewest tokens of
// those with the fewest sequences of its prompt. Then alternate: plan homes for the micro-batches
// as they are (reorder.h); project every sequence's histogram to its node loads under these homes,
// L x N numbers; swap sequences of different micro-batches as long as the sum of squared deviations
// of node loads from their mean falls (swap_search.h). Last, deal each micro-batch's sequences to
// ranks.
//
// Cost. Q sequences, d = L x N: O(Q L E + Q^2 d) a round for the projection and the inner products,
// and O(Q) a pair looked at. Above 2,048 sequences the micro-batches are worked on in sets of that
// many sequences, so the cost grows linearly with the number of micro-batches.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_PACK_H_
#define RELIBRA_PLANNER_SERVICE_CORE_PACK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner_service/core/composition.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"

namespace relibra {

// The sequences of a step. Spans must outlive the call.
struct PackSequences {
  absl::Span<const std::string> ids = {};  // [Q], for messages
  absl::Span<const uint32_t> tokens = {};  // [Q]
  absl::Span<const uint32_t> counts = {};  // [Q][L][E], (token, choice) pairs
  absl::Span<const uint32_t> prompt_groups =
      {};  // [Q]; empty: every sequence is a group of its own
  // [Q], the order given; both empty where there is none.
  absl::Span<const uint32_t> source_ranks = {};
  absl::Span<const uint32_t> micro_batches = {};
};

struct PackOptions {
  int micro_batches = 1;
  uint64_t max_tokens = 0;          // of one rank in one micro-batch; 0: no cap
  bool keep_prompt_groups = false;  // a prompt's sequences share a micro-batch
  int rounds = 3;                   // alternations of homes and swaps
};

struct Packing {
  std::vector<uint32_t> source_ranks;   // [Q]
  std::vector<uint32_t> micro_batches;  // [Q]
  PackBalance balance;
  // [L][E] homes that suit this composition and from which the step should be planned: the
  // composition is fitted to them, and from other homes the planner finds a worse plan. Experts
  // that stay in their node stay on their rank.
  Placement homes;
  // Mean over (micro-batch, layer) of max / mean node load under these homes; and of the order
  // given under homes found for it in the same way.
  double node_imbalance = 1;
  double node_imbalance_before = 1;
};

// Chooses a composition. Each sequence is in it exactly once, no rank and micro-batch has more than
// max_tokens, and where the order given keeps these rules the result is no worse than it in any
// field of PackBalance (if need be, it is the order given). `current`: [L][E] homes before the
// step. INVALID_ARGUMENT when sizes do not fit one another or the topology; FAILED_PRECONDITION
// naming a sequence that cannot fit. The same input gives the same packing whatever the
// ParallelFor.
absl::StatusOr<Packing> PackStep(const PackSequences& sequences, const Topology& topology,
                                 const Placement& current, const PackOptions& options,
                                 ParallelFor parallel_for);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_PACK_H_

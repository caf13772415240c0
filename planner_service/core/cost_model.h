// How long a step spends in its MoE layers: a model for comparing policies, not a measurement. It
// knows no attention, no kernel launches and no overlap of communication with computation.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_COST_MODEL_H_
#define RELIBRA_PLANNER_SERVICE_CORE_COST_MODEL_H_

#include <cstdint>

#include "planner_service/core/evaluate.h"

namespace relibra {

// Sizes of one routed expert of one layer; bytes as they travel.
struct ExpertSizes {
  double weight_bytes = 0;     // of its weights, as a replica receives them
  double gradient_bytes = 0;   // of its gradient, as a replica returns it
  double optimizer_bytes = 0;  // of its optimizer state, which moves with its home
  double flops_per_token = 0;  // forward: 2 a multiply-add
  double token_bytes = 0;      // of a token's hidden state
};

// Rates that one GPU reaches in practice, one direction.
struct GpuRates {
  double gemm_flops = 0;               // grouped GEMMs, FLOPs a second
  double in_node_bytes_second = 0;     // NVLink
  double cross_node_bytes_second = 0;  // RDMA
};

struct StepTime {
  double compute_seconds = 0;     // grouped GEMMs, forward and backward
  double all_to_all_seconds = 0;  // dispatch and combine, forward and backward
  double copy_seconds = 0;        // replicas' weights and gradients, where not hidden
  double move_seconds = 0;        // moves and bridges, once a step, where not hidden

  double total_seconds() const {
    return compute_seconds + all_to_all_seconds + copy_seconds + move_seconds;
  }
};

// The modelled time that a step spends in its MoE layers under one policy:
//
//   sum over (layer, micro-batch) of
//       3 F t / C                                 compute: forward, and twice that backward
//     + 4 B max(a / X, i / N)                     dispatch and combine, forward and backward
//     + h (W f + G r) / N                         weights fetched, gradients returned
//   + h ((W + G) b + (W + O) c) / X + h (W + O) d / N     bridges and moves, once a step
//
//   t  (token, choice) pairs of the most loaded rank: all ranks wait for it
//   a  rows that one rank sends to, or receives from, other nodes, the most; i: its own node. The
//   two
//      networks work at once (a row that arrives in a node goes on inside it while others arrive)
//   f  replicas that one rank receives, or sends, the most; r: gradients likewise
//   b  bridges, c moves between nodes, d moves inside nodes that one rank sends, or receives, the
//   most F, B, W, G, O  flops_per_token, token_bytes, weight_bytes, gradient_bytes, optimizer_bytes
//   C, X, N  gemm_flops, cross_node_bytes_second, in_node_bytes_second
//   h  exposure: the share of copies and moves that nothing hides, 0 to 1. The default hides
//   nothing.
//
// A maximum is taken for each term by itself, as ranks meet at every all-to-all. A replica's
// weights are fetched once a micro-batch, not again for the backward pass.
StepTime ModelStepTime(const PolicyResult& result, const ExpertSizes& sizes, const GpuRates& rates,
                       double exposure = 1);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_COST_MODEL_H_

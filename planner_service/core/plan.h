// The plan of a step of one EP group. What holds of every plan is written in CheckPlan's header,
// planner_service/core/plan_check.h.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_PLAN_H_
#define RELIBRA_PLANNER_SERVICE_CORE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner_service/core/topology.h"

namespace relibra {

// An expert whose home changes before the step.
struct Move {
  int32_t expert = 0;
  int32_t from_rank = 0;
  int32_t to_rank = 0;

  friend bool operator==(const Move&, const Move&) = default;
};

// A temporary copy of an expert. What its home serves is the expert's load less its replicas'
// tokens.
struct Replica {
  int32_t expert = 0;
  int32_t rank = 0;
  int32_t slot = 0;     // replica slot of that rank, 0..R-1
  uint32_t tokens = 0;  // (token, choice) pairs it serves, over all source ranks
  bool cross_node =
      false;  // a bridge: same expert, rank and slot in every micro-batch of the layer

  friend bool operator==(const Replica&, const Replica&) = default;
};

// How many tokens of one source rank one instance (home or replica) of an expert serves.
struct Split {
  int32_t expert = 0;
  int32_t source_rank = 0;
  int32_t rank = 0;  // the instance's
  uint32_t tokens = 0;

  friend bool operator==(const Split&, const Split&) = default;
};

struct LayerPlan {
  std::vector<int32_t> home_rank;              // [E]
  std::vector<Move> moves;                     // ascending by expert
  std::vector<std::vector<Replica>> replicas;  // [M], each ascending by (expert, rank)
};

// Home ranks [L][E] as they are before the step. LinearPlacement is the start of every job.
using Placement = std::vector<std::vector<int32_t>>;

// Expert e of every layer on rank e / (E / P), as Megatron-LM lays experts out.
// num_experts must divide evenly over the ranks (see Validate).
Placement LinearPlacement(const Topology& topology, int num_layers, int num_experts);

// Imbalance is max over ranks / mean over ranks of the load computed, averaged over layers and
// micro-batches; a (layer, micro-batch) without tokens counts as 1.
struct PlanSummary {
  double imbalance_before = 1;  // homes as they were, no replicas
  double imbalance_after = 1;
  double lower_bound = 1;  // see planner_service/core/bounds.h
  double node_imbalance_after = 1;
  double plan_seconds = 0;
  int64_t moves = 0;
  int64_t cross_node_moves = 0;
  int64_t replicas = 0;       // over all (layer, micro-batch), bridges not counted
  int64_t bridges = 0;        // over all layers
  int64_t replicas_kept = 0;  // of `replicas`: already there in the micro-batch before
  int64_t tokens = 0;         // (token, choice) pairs of the step
};

struct Plan {
  Topology topology;
  std::vector<LayerPlan> layers;  // [L]
  PlanSummary summary;
  // Hex digest of topology, homes, moves and replicas with their tokens. Splits follow from these
  // and the loads (see split.h), so two holders of one digest and the same loads agree on all.
  std::string digest;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_PLAN_H_

// The small training run of the self-test: a model, its data and its router, all from one seed, so
// that every rank, and the reference, knows the same run without a word being sent.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_SCENARIO_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_SCENARIO_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_agent/group_shape.h"

namespace relibra::agent::selftest {

// The model: layer l computes  h + sum over k of w_k * expert_{e_k}(h),  w = softmax over k of
// router_l[e_k] . h  (the router is frozen), expert(x) = W2 (silu(W1 x) * (W3 x)). The ids e_k are
// replayed from the "rollout", which routes the input x itself. Loss: half the squared distance of
// the last layer's output from a target, over the tokens of a rank in a step. Updates: SGD with
// momentum.
struct Scenario {
  int nodes = 2;
  int gpus_per_node = 4;
  int replica_slots = 2;
  int layers = 2;
  int experts = 24;
  int top_k = 3;
  int hidden = 32;
  int intermediate = 48;
  int micro_batches = 3;
  int sequences = 2;  // of a rank, in each micro-batch
  int sequence_tokens = 24;
  double skew = 1.0;  // standard deviation of the logits that make experts popular in a step
  float learning_rate = 0.05F;
  float momentum = 0.9F;
  uint64_t seed = 1;

  int ranks() const { return nodes * gpus_per_node; }
  int tokens() const { return sequences * sequence_tokens; }  // of a rank, in a micro-batch
  GroupShape Shape() const;
};

// INVALID_ARGUMENT naming the field that is out of range.
absl::Status Validate(const Scenario& scenario);

// Weights at the start: w13 [2 * intermediate, hidden] (W1 above W3), w2 [hidden, intermediate].
struct ExpertWeights {
  std::vector<float> w13;
  std::vector<float> w2;
};
ExpertWeights InitialWeights(const Scenario& scenario, int layer, int expert);

// [experts, hidden]
std::vector<float> RouterWeights(const Scenario& scenario, int layer);

// A rank's input and target of a micro-batch: [tokens, hidden].
std::vector<float> Inputs(const Scenario& scenario, int step, int micro_batch, int rank);
std::vector<float> Targets(const Scenario& scenario, int step, int micro_batch, int rank);

// The routes that the rollout recorded: [tokens, layers, top_k], distinct ids a row. Which experts
// are popular changes from step to step and, less, from sequence to sequence.
std::vector<int32_t> Routes(const Scenario& scenario, int step, int micro_batch, int rank);

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_SCENARIO_H_

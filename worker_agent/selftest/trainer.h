// Trains the self-test's model as one rank of the group, the way a real trainer uses the agent.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_TRAINER_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/agent.h"
#include "worker_agent/selftest/expert_math.h"
#include "worker_agent/selftest/scenario.h"
#include "worker_agent/selftest/token_exchange.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent::selftest {

// A deliberate mistake, to show that the comparison sees it.
enum class Sabotage {
  kNone,
  kWrongSplit,      // one token of each rank is served by its neighbour slot's expert
  kDropGradient,    // a replica's gradient is not returned
  kDoubleGradient,  // a replica's gradient is returned twice
};

// The buffers of the self-test's experts, w13 w2 (weights), m13 m2 (momenta), g13 g2 (gradients).
std::vector<BufferSpec> ExpertBuffers(const Scenario& scenario);

// The store of a rank with the initial weights of its experts in linear placement.
absl::StatusOr<std::unique_ptr<ExpertStore>> MakeStore(const Scenario& scenario, int rank);

// Not thread-safe. agent and transport outlive it.
class Trainer {
 public:
  Trainer(const Scenario& scenario, Agent& agent, transport::Transport& transport,
          Sabotage sabotage, absl::Duration timeout);

  // Between the agent's BeginStep and this rank's weights of the next step. Every rank calls it.
  absl::Status Train(int step);

  // The last step's output of this rank's tokens of a micro-batch: [tokens, hidden].
  const std::vector<float>& Output(int micro_batch) const { return outputs_[micro_batch]; }
  // The last step's gradients of a home slot, as summed before the update: g13, g2.
  const std::vector<std::vector<float>>& Gradients(int layer, int slot) const {
    return gradients_[static_cast<size_t>(layer) * scenario_.Shape().home_slots() + slot];
  }
  // (token, choice) pairs that this rank computed, micro-batch-major: [micro_batches, layers].
  const std::vector<uint32_t>& computed() const { return computed_; }

 private:
  // What a layer's forward pass leaves for its backward pass.
  struct LayerTrace {
    std::vector<float> input;        // [tokens, hidden]
    std::vector<float> weights;      // [tokens, top_k]
    std::vector<float> expert_rows;  // [rows, hidden], what came back from the experts
    std::vector<float> served;       // [served, hidden], what this rank's experts got
    std::vector<int32_t> ids;        // [tokens, top_k]
    DispatchMap map;
    std::optional<TokenExchange> exchange;
  };

  absl::Status TrainMicroBatch(int step, int micro_batch);
  absl::StatusOr<std::vector<float>> Forward(int layer, int micro_batch,
                                             const std::vector<int32_t>& routes,
                                             std::vector<float> input, LayerTrace& trace);
  absl::StatusOr<std::vector<float>> Backward(int layer, const std::vector<float>& grad,
                                              LayerTrace& trace);
  void CombinationWeights(int layer, LayerTrace& trace) const;
  void RouterBackward(int layer, const LayerTrace& trace, const std::vector<float>& grad_weights,
                      std::vector<float>& grad_input) const;
  void Spoil(DispatchMap& map) const;
  void SpoilGradients(int layer, int micro_batch);
  void Update();

  ExpertView View(int layer, int slot) const;
  MatrixView Buffer(int layer, int slot, int buffer) const;
  absl::Time Deadline() const;

  const Scenario scenario_;
  Agent& agent_;
  transport::Transport& transport_;
  const Sabotage sabotage_;
  const absl::Duration timeout_;
  std::vector<std::vector<float>> routers_;  // [layers] of [experts, hidden]
  uint64_t exchanges_ = 0;
  std::vector<std::vector<float>> outputs_;
  std::vector<std::vector<std::vector<float>>> gradients_;
  std::vector<uint32_t> computed_;
};

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_TRAINER_H_

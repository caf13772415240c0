// What the self-test is compared with: the same training run in one process, in double precision
// and plain loops. It knows no ranks' homes, no replicas, no plans; it shares only the scenario
// with the trainer.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_REFERENCE_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_REFERENCE_H_

#include <vector>

#include "worker_agent/selftest/scenario.h"

namespace relibra::agent::selftest {

// Not thread-safe.
class Reference {
 public:
  explicit Reference(const Scenario& scenario);

  // Trains on one step of all ranks' tokens.
  void Train(int step);

  // Adds to element `index` of an expert's w13, for checks by finite differences.
  void NudgeForTest(int layer, int expert, size_t index, double by) {
    MutableAt(layer, expert).w13[index] += by;
  }

  // The last step's output of a rank's tokens: [tokens, hidden].
  const std::vector<double>& Output(int micro_batch, int rank) const {
    return outputs_[static_cast<size_t>(micro_batch) * scenario_.ranks() + rank];
  }
  // One expert: weights and momenta after the last step, gradients as the last step summed them.
  // Shapes as in ExpertWeights.
  struct Expert {
    std::vector<double> w13, w2;
    std::vector<double> m13, m2;
    std::vector<double> g13, g2;
  };
  const Expert& At(int layer, int expert) const {
    return experts_[static_cast<size_t>(layer) * scenario_.experts + expert];
  }

 private:
  // What the forward pass of one token in one layer leaves for the backward pass.
  struct TokenTrace {
    std::vector<double> input;                 // [hidden]
    std::vector<double> weight;                // [top_k], of the combination
    std::vector<std::vector<double>> a, b, y;  // [top_k] of [intermediate] twice, [hidden]
  };

  Expert& MutableAt(int layer, int expert) {
    return experts_[static_cast<size_t>(layer) * scenario_.experts + expert];
  }
  std::vector<double> Forward(int layer, const std::vector<double>& input, const int32_t* ids,
                              TokenTrace& trace) const;
  std::vector<double> Backward(int layer, const std::vector<double>& grad, const int32_t* ids,
                               const TokenTrace& trace);
  void TrainRank(int step, int micro_batch, int rank);
  void Update();

  const Scenario scenario_;
  std::vector<std::vector<float>> routers_;   // [layers] of [experts, hidden]
  std::vector<Expert> experts_;               // [layers, experts]
  std::vector<std::vector<double>> outputs_;  // [micro_batches, ranks] of [tokens, hidden]
};

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_REFERENCE_H_

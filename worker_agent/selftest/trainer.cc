#include "worker_agent/selftest/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/permute.h"

namespace relibra::agent::selftest {
namespace {

// Indices into ExpertBuffers.
enum Buffers { kW13, kW2, kM13, kM2, kG13, kG2 };

FloatRows Read(const std::vector<float>& rows) { return {rows.data(), FloatType::kFp32}; }
MutableFloatRows Write(std::vector<float>& rows) { return {rows.data(), FloatType::kFp32}; }

}  // namespace

std::vector<BufferSpec> ExpertBuffers(const Scenario& s) {
  const uint64_t w2 = sizeof(float) * s.hidden * s.intermediate;
  return {{"w13", FloatType::kFp32, 2 * w2, BufferRole::kWeight},
          {"w2", FloatType::kFp32, w2, BufferRole::kWeight},
          {"m13", FloatType::kFp32, 2 * w2, BufferRole::kOptimizerState},
          {"m2", FloatType::kFp32, w2, BufferRole::kOptimizerState},
          {"g13", FloatType::kFp32, 2 * w2, BufferRole::kGradient},
          {"g2", FloatType::kFp32, w2, BufferRole::kGradient}};
}

absl::StatusOr<std::unique_ptr<ExpertStore>> MakeStore(const Scenario& scenario, int rank) {
  const GroupShape shape = scenario.Shape();
  auto store = ExpertStore::Create(shape, rank, ExpertBuffers(scenario));
  if (!store.ok()) return store;
  (*store)->AllocateMissing();
  const Placement linear = Placement::Linear(shape);
  for (int l = 0; l < shape.layers(); ++l) {
    const std::vector<int> experts = linear.ExpertsOf(l, rank);
    for (int slot = 0; slot < shape.home_slots(); ++slot) {
      const ExpertWeights weights = InitialWeights(scenario, l, experts[slot]);
      std::memcpy((*store)->Buffer(l, slot, kW13), weights.w13.data(), weights.w13.size() * 4);
      std::memcpy((*store)->Buffer(l, slot, kW2), weights.w2.data(), weights.w2.size() * 4);
    }
  }
  return store;
}

Trainer::Trainer(const Scenario& scenario, Agent& agent, transport::Transport& transport,
                 Sabotage sabotage, absl::Duration timeout)
    : scenario_(scenario),
      agent_(agent),
      transport_(transport),
      sabotage_(sabotage),
      timeout_(timeout),
      outputs_(scenario.micro_batches),
      gradients_(static_cast<size_t>(scenario.layers) * scenario.Shape().home_slots()) {
  for (int l = 0; l < scenario.layers; ++l) routers_.push_back(RouterWeights(scenario, l));
}

absl::Time Trainer::Deadline() const { return absl::Now() + timeout_; }

MatrixView Trainer::Buffer(int layer, int slot, int buffer) const {
  const bool first = buffer == kW13 || buffer == kM13 || buffer == kG13;
  return {reinterpret_cast<float*>(agent_.store().Buffer(layer, slot, buffer)),
          first ? 2 * scenario_.intermediate : scenario_.hidden,
          first ? scenario_.hidden : scenario_.intermediate};
}

ExpertView Trainer::View(int layer, int slot) const {
  const MatrixView w13 = Buffer(layer, slot, kW13);
  const MatrixView w2 = Buffer(layer, slot, kW2);
  return {{w13.data(), w13.rows(), w13.cols()}, {w2.data(), w2.rows(), w2.cols()}};
}

absl::Status Trainer::Train(int step) {
  computed_.clear();
  const GroupShape shape = scenario_.Shape();
  for (int l = 0; l < shape.layers(); ++l) {
    for (int slot = 0; slot < shape.home_slots(); ++slot) agent_.store().ZeroGradients(l, slot);
  }
  for (int m = 0; m < scenario_.micro_batches; ++m) {
    if (absl::Status s = TrainMicroBatch(step, m); !s.ok()) return s;
  }
  absl::Status s = agent_.EndStep({.with_gradients = true, .computed_tokens = computed_});
  if (!s.ok()) return s;
  Update();
  return absl::OkStatus();
}

absl::Status Trainer::TrainMicroBatch(int step, int micro_batch) {
  const int rank = transport_.rank();
  std::vector<float> state = Inputs(scenario_, step, micro_batch, rank);
  const std::vector<float> targets = Targets(scenario_, step, micro_batch, rank);
  const std::vector<int32_t> routes = Routes(scenario_, step, micro_batch, rank);
  std::vector<LayerTrace> traces(scenario_.layers);
  for (int l = 0; l < scenario_.layers; ++l) {
    if (absl::Status s = agent_.Prefetch(l, micro_batch); !s.ok()) return s;
  }
  for (int l = 0; l < scenario_.layers; ++l) {
    auto output = Forward(l, micro_batch, routes, std::move(state), traces[l]);
    if (!output.ok()) return output.status();
    state = *std::move(output);
  }
  outputs_[micro_batch] = state;
  const auto scale = static_cast<float>(scenario_.tokens() * scenario_.micro_batches);
  for (size_t i = 0; i < state.size(); ++i) state[i] = (state[i] - targets[i]) / scale;
  for (int l = scenario_.layers - 1; l >= 0; --l) {
    auto grad = Backward(l, state, traces[l]);
    if (!grad.ok()) return grad.status();
    state = *std::move(grad);
    SpoilGradients(l, micro_batch);
    if (absl::Status s = agent_.ReduceGradients(l, micro_batch); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Softmax over the chosen experts' logits.
void Trainer::CombinationWeights(int layer, LayerTrace& trace) const {
  const int hidden = scenario_.hidden;
  const int top_k = scenario_.top_k;
  trace.weights.resize(trace.ids.size());
  for (int t = 0; t < scenario_.tokens(); ++t) {
    float* weights = trace.weights.data() + static_cast<ptrdiff_t>(t) * top_k;
    for (int k = 0; k < top_k; ++k) {
      const int32_t id = trace.ids[t * top_k + k];
      float logit = 0;
      for (int h = 0; h < hidden; ++h) {
        logit += routers_[layer][id * hidden + h] * trace.input[t * hidden + h];
      }
      weights[k] = logit;
    }
    const float largest = *std::max_element(weights, weights + top_k);
    float sum = 0;
    for (int k = 0; k < top_k; ++k) sum += weights[k] = std::exp(weights[k] - largest);
    for (int k = 0; k < top_k; ++k) weights[k] /= sum;
  }
}

absl::StatusOr<std::vector<float>> Trainer::Forward(int layer, int micro_batch,
                                                    const std::vector<int32_t>& routes,
                                                    std::vector<float> input, LayerTrace& trace) {
  const int top_k = scenario_.top_k;
  const int tokens = scenario_.tokens();
  const int hidden = scenario_.hidden;
  trace.input = std::move(input);
  for (int t = 0; t < tokens; ++t) {
    const auto row =
        routes.begin() + (static_cast<ptrdiff_t>(t) * scenario_.layers + layer) * top_k;
    trace.ids.insert(trace.ids.end(), row, row + top_k);
  }
  CombinationWeights(layer, trace);

  auto map = agent_.Map(
      layer, micro_batch,
      {.data = trace.ids.data(), .type = IdType::kI32, .tokens = tokens, .top_k = top_k});
  if (!map.ok()) return map.status();
  trace.map = *std::move(map);
  if (sabotage_ == Sabotage::kWrongSplit) Spoil(trace.map);
  const RowMap row_map{trace.map.row_of_choice.data(), tokens, top_k, hidden};
  std::vector<float> rows(trace.map.rows() * hidden);
  absl::Status s = Permute(Executor::Cpu(), row_map, Read(trace.input), Write(rows));
  if (!s.ok()) return s;

  auto exchange = TokenExchange::Create(transport_, scenario_.Shape(), trace.map, hidden,
                                        exchanges_++, Deadline());
  if (!exchange.ok()) return exchange.status();
  trace.exchange = *std::move(exchange);
  auto served = trace.exchange->Dispatch(rows, Deadline());
  if (!served.ok()) return served.status();
  trace.served = *std::move(served);
  computed_.resize(static_cast<size_t>(scenario_.micro_batches) * scenario_.layers);
  computed_[micro_batch * scenario_.layers + layer] =
      static_cast<uint32_t>(trace.exchange->served());

  if (s = agent_.Wait(layer, micro_batch); !s.ok()) return s;
  std::vector<float> results(trace.served.size());
  for (int slot = 0; slot < scenario_.Shape().physical_slots(); ++slot) {
    const int64_t n = trace.exchange->SlotRows(slot);
    if (n == 0) continue;
    const int64_t at = trace.exchange->SlotBegin(slot) * hidden;
    MatrixView(results.data() + at, n, hidden) =
        ExpertForward(View(layer, slot), ConstMatrixView(trace.served.data() + at, n, hidden));
  }
  auto expert_rows = trace.exchange->Return(results, Deadline());
  if (!expert_rows.ok()) return expert_rows.status();
  trace.expert_rows = *std::move(expert_rows);

  std::vector<float> output(trace.input.size());
  s = Combine(Executor::Cpu(), row_map, Read(trace.expert_rows), trace.weights.data(),
              Write(output));
  if (!s.ok()) return s;
  for (size_t i = 0; i < output.size(); ++i) output[i] += trace.input[i];
  return output;
}

absl::StatusOr<std::vector<float>> Trainer::Backward(int layer, const std::vector<float>& grad,
                                                     LayerTrace& trace) {
  const int hidden = scenario_.hidden;
  const RowMap row_map{trace.map.row_of_choice.data(), scenario_.tokens(), scenario_.top_k, hidden};
  std::vector<float> grad_rows(trace.expert_rows.size());
  std::vector<float> grad_weights(trace.weights.size());
  absl::Status s = CombineBackward(Executor::Cpu(), row_map, Read(grad), Read(trace.expert_rows),
                                   trace.weights.data(), Write(grad_rows), grad_weights.data());
  if (!s.ok()) return s;

  auto grad_served = trace.exchange->Dispatch(grad_rows, Deadline());
  if (!grad_served.ok()) return grad_served.status();
  std::vector<float> grad_results(grad_served->size());
  for (int slot = 0; slot < scenario_.Shape().physical_slots(); ++slot) {
    const int64_t n = trace.exchange->SlotRows(slot);
    if (n == 0) continue;
    const int64_t at = trace.exchange->SlotBegin(slot) * hidden;
    MatrixView(grad_results.data() + at, n, hidden) =
        ExpertBackward(View(layer, slot), ConstMatrixView(trace.served.data() + at, n, hidden),
                       ConstMatrixView(grad_served->data() + at, n, hidden),
                       Buffer(layer, slot, kG13), Buffer(layer, slot, kG2));
  }
  auto grad_inputs = trace.exchange->Return(grad_results, Deadline());
  if (!grad_inputs.ok()) return grad_inputs.status();

  std::vector<float> grad_input(trace.input.size());
  s = Combine(Executor::Cpu(), row_map, Read(*grad_inputs), nullptr, Write(grad_input));
  if (!s.ok()) return s;
  for (size_t i = 0; i < grad_input.size(); ++i) grad_input[i] += grad[i];
  RouterBackward(layer, trace, grad_weights, grad_input);
  return grad_input;
}

void Trainer::RouterBackward(int layer, const LayerTrace& trace,
                             const std::vector<float>& grad_weights,
                             std::vector<float>& grad_input) const {
  const int hidden = scenario_.hidden;
  const int top_k = scenario_.top_k;
  for (int t = 0; t < scenario_.tokens(); ++t) {
    const float* weight = trace.weights.data() + static_cast<ptrdiff_t>(t) * top_k;
    const float* grad_weight = grad_weights.data() + static_cast<ptrdiff_t>(t) * top_k;
    float mean = 0;
    for (int k = 0; k < top_k; ++k) mean += weight[k] * grad_weight[k];
    for (int k = 0; k < top_k; ++k) {
      const float grad_logit = weight[k] * (grad_weight[k] - mean);
      const int32_t id = trace.ids[t * top_k + k];
      for (int h = 0; h < hidden; ++h) {
        grad_input[t * hidden + h] += grad_logit * routers_[layer][id * hidden + h];
      }
    }
  }
}

// Counts the last row of a home slot as its neighbour's first.
void Trainer::Spoil(DispatchMap& map) const {
  const GroupShape shape = scenario_.Shape();
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    int64_t* counts = map.counts.data() + static_cast<ptrdiff_t>(rank) * shape.physical_slots();
    for (int slot = 0; slot + 1 < shape.home_slots(); ++slot) {
      if (counts[slot] == 0) continue;
      --counts[slot];
      ++counts[slot + 1];
      return;
    }
  }
}

void Trainer::SpoilGradients(int layer, int micro_batch) {
  if (sabotage_ != Sabotage::kDropGradient && sabotage_ != Sabotage::kDoubleGradient) return;
  if (agent_.plan() == nullptr) return;
  const float factor = sabotage_ == Sabotage::kDropGradient ? 0 : 2;
  for (const Replica& r : agent_.plan()->layers[layer].micro_batches[micro_batch].replicas) {
    if (r.rank != transport_.rank() || r.bridge) continue;
    const int slot = scenario_.Shape().home_slots() + r.slot;
    Buffer(layer, slot, kG13) *= factor;
    Buffer(layer, slot, kG2) *= factor;
    return;
  }
}

void Trainer::Update() {
  const GroupShape shape = scenario_.Shape();
  for (int l = 0; l < shape.layers(); ++l) {
    for (int slot = 0; slot < shape.home_slots(); ++slot) {
      auto& kept = gradients_[static_cast<size_t>(l) * shape.home_slots() + slot];
      kept.clear();
      for (const auto& [weight, momentum, gradient] :
           {std::array{kW13, kM13, kG13}, std::array{kW2, kM2, kG2}}) {
        MatrixView w = Buffer(l, slot, weight);
        MatrixView m = Buffer(l, slot, momentum);
        const MatrixView g = Buffer(l, slot, gradient);
        kept.emplace_back(g.data(), g.data() + g.size());
        m = scenario_.momentum * m + g;
        w -= scenario_.learning_rate * m;
      }
    }
  }
}

}  // namespace relibra::agent::selftest

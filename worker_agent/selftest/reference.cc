#include "worker_agent/selftest/reference.h"

#include <algorithm>
#include <cmath>

namespace relibra::agent::selftest {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void UpdateTensor(std::vector<double>& weight, std::vector<double>& momentum,
                  const std::vector<double>& grad, double rate, double decay) {
  for (size_t i = 0; i < weight.size(); ++i) {
    momentum[i] = decay * momentum[i] + grad[i];
    weight[i] -= rate * momentum[i];
  }
}

}  // namespace

Reference::Reference(const Scenario& scenario) : scenario_(scenario) {
  for (int l = 0; l < scenario.layers; ++l) {
    routers_.push_back(RouterWeights(scenario, l));
    for (int e = 0; e < scenario.experts; ++e) {
      const ExpertWeights initial = InitialWeights(scenario, l, e);
      Expert expert;
      expert.w13.assign(initial.w13.begin(), initial.w13.end());
      expert.w2.assign(initial.w2.begin(), initial.w2.end());
      expert.m13.assign(expert.w13.size(), 0);
      expert.m2.assign(expert.w2.size(), 0);
      experts_.push_back(std::move(expert));
    }
  }
  outputs_.resize(static_cast<size_t>(scenario.micro_batches) * scenario.ranks());
}

std::vector<double> Reference::Forward(int layer, const std::vector<double>& input,
                                       const int32_t* ids, TokenTrace& trace) const {
  const int hidden = scenario_.hidden;
  const int inner = scenario_.intermediate;
  const int top_k = scenario_.top_k;
  trace.input = input;
  trace.weight.assign(top_k, 0);
  trace.a.assign(top_k, std::vector<double>(inner, 0));
  trace.b.assign(top_k, std::vector<double>(inner, 0));
  trace.y.assign(top_k, std::vector<double>(hidden, 0));

  for (int k = 0; k < top_k; ++k) {
    for (int h = 0; h < hidden; ++h) {
      trace.weight[k] += routers_[layer][static_cast<size_t>(ids[k]) * hidden + h] * input[h];
    }
  }
  const double largest = *std::max_element(trace.weight.begin(), trace.weight.end());
  double sum = 0;
  for (double& weight : trace.weight) sum += weight = std::exp(weight - largest);
  std::vector<double> output = input;
  for (int k = 0; k < top_k; ++k) {
    trace.weight[k] /= sum;
    const Expert& expert = At(layer, ids[k]);
    for (int i = 0; i < inner; ++i) {
      for (int h = 0; h < hidden; ++h) {
        trace.a[k][i] += expert.w13[static_cast<size_t>(i) * hidden + h] * input[h];
        trace.b[k][i] += expert.w13[static_cast<size_t>(inner + i) * hidden + h] * input[h];
      }
    }
    for (int h = 0; h < hidden; ++h) {
      for (int i = 0; i < inner; ++i) {
        const double a = trace.a[k][i];
        trace.y[k][h] +=
            expert.w2[static_cast<size_t>(h) * inner + i] * a * Sigmoid(a) * trace.b[k][i];
      }
      output[h] += trace.weight[k] * trace.y[k][h];
    }
  }
  return output;
}

std::vector<double> Reference::Backward(int layer, const std::vector<double>& grad,
                                        const int32_t* ids, const TokenTrace& trace) {
  const int hidden = scenario_.hidden;
  const int inner = scenario_.intermediate;
  const int top_k = scenario_.top_k;
  std::vector<double> grad_input = grad;

  std::vector<double> grad_weight(top_k, 0);
  double mean = 0;
  for (int k = 0; k < top_k; ++k) {
    for (int h = 0; h < hidden; ++h) grad_weight[k] += grad[h] * trace.y[k][h];
    mean += trace.weight[k] * grad_weight[k];
  }
  for (int k = 0; k < top_k; ++k) {
    const double grad_logit = trace.weight[k] * (grad_weight[k] - mean);
    for (int h = 0; h < hidden; ++h) {
      grad_input[h] += grad_logit * routers_[layer][static_cast<size_t>(ids[k]) * hidden + h];
    }
    Expert& expert = MutableAt(layer, ids[k]);
    for (int i = 0; i < inner; ++i) {
      const double a = trace.a[k][i];
      const double b = trace.b[k][i];
      const double silu = a * Sigmoid(a);
      double grad_s = 0;
      for (int h = 0; h < hidden; ++h) {
        const double grad_y = trace.weight[k] * grad[h];
        grad_s += grad_y * expert.w2[static_cast<size_t>(h) * inner + i];
        expert.g2[static_cast<size_t>(h) * inner + i] += grad_y * silu * b;
      }
      const double grad_a = grad_s * b * Sigmoid(a) * (1 + a * (1 - Sigmoid(a)));
      const double grad_b = grad_s * silu;
      for (int h = 0; h < hidden; ++h) {
        const size_t one = static_cast<size_t>(i) * hidden + h;
        const size_t three = static_cast<size_t>(inner + i) * hidden + h;
        expert.g13[one] += grad_a * trace.input[h];
        expert.g13[three] += grad_b * trace.input[h];
        grad_input[h] += grad_a * expert.w13[one] + grad_b * expert.w13[three];
      }
    }
  }
  return grad_input;
}

void Reference::TrainRank(int step, int micro_batch, int rank) {
  const Scenario& s = scenario_;
  const std::vector<float> inputs = Inputs(s, step, micro_batch, rank);
  const std::vector<float> targets = Targets(s, step, micro_batch, rank);
  const std::vector<int32_t> routes = Routes(s, step, micro_batch, rank);
  std::vector<double>& output = outputs_[static_cast<size_t>(micro_batch) * s.ranks() + rank];
  output.clear();
  std::vector<TokenTrace> traces(s.layers);
  for (int t = 0; t < s.tokens(); ++t) {
    const auto ids = [&](int layer) {
      return routes.data() + (static_cast<size_t>(t) * s.layers + layer) * s.top_k;
    };
    std::vector<double> state(inputs.begin() + static_cast<ptrdiff_t>(t) * s.hidden,
                              inputs.begin() + static_cast<ptrdiff_t>(t + 1) * s.hidden);
    for (int l = 0; l < s.layers; ++l) state = Forward(l, state, ids(l), traces[l]);
    output.insert(output.end(), state.begin(), state.end());
    for (int h = 0; h < s.hidden; ++h) {
      state[h] = (state[h] - targets[static_cast<size_t>(t) * s.hidden + h]) /
                 (s.tokens() * s.micro_batches);
    }
    for (int l = s.layers - 1; l >= 0; --l) state = Backward(l, state, ids(l), traces[l]);
  }
}

void Reference::Update() {
  for (Expert& e : experts_) {
    UpdateTensor(e.w13, e.m13, e.g13, scenario_.learning_rate, scenario_.momentum);
    UpdateTensor(e.w2, e.m2, e.g2, scenario_.learning_rate, scenario_.momentum);
  }
}

void Reference::Train(int step) {
  for (Expert& e : experts_) {
    e.g13.assign(e.w13.size(), 0);
    e.g2.assign(e.w2.size(), 0);
  }
  for (int m = 0; m < scenario_.micro_batches; ++m) {
    for (int r = 0; r < scenario_.ranks(); ++r) TrainRank(step, m, r);
  }
  Update();
}

}  // namespace relibra::agent::selftest

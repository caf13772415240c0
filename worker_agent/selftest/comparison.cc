#include "worker_agent/selftest/comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace relibra::agent::selftest {
namespace {

double RelativeError(const float* actual, const std::vector<double>& expected) {
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(double{actual[i]} - expected[i]);
    // A NaN must not pass as small.
    if (!(d <= 1e300)) return INFINITY;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(expected[i]));
  }
  if (largest == 0) return difference == 0 ? 0 : INFINITY;
  return difference / largest;
}

}  // namespace

double Errors::Largest() const { return std::max({outputs, gradients, weights, momenta}); }

void Errors::Take(const Errors& other) {
  outputs = std::max(outputs, other.outputs);
  gradients = std::max(gradients, other.gradients);
  weights = std::max(weights, other.weights);
  momenta = std::max(momenta, other.momenta);
}

Errors CompareExperts(const Scenario& scenario, int rank, Agent& agent,
                      const Reference& reference) {
  Errors errors;
  const ExpertStore& store = agent.store();
  const auto buffer = [&](int layer, int slot, const char* name) {
    return reinterpret_cast<const float*>(store.Buffer(layer, slot, store.Find(name)));
  };
  for (int l = 0; l < scenario.layers; ++l) {
    const std::vector<int> experts = agent.placement().ExpertsOf(l, rank);
    for (int slot = 0; slot < static_cast<int>(experts.size()); ++slot) {
      const Reference::Expert& expected = reference.At(l, experts[slot]);
      errors.Take({.weights = std::max(RelativeError(buffer(l, slot, "w13"), expected.w13),
                                       RelativeError(buffer(l, slot, "w2"), expected.w2)),
                   .momenta = std::max(RelativeError(buffer(l, slot, "m13"), expected.m13),
                                       RelativeError(buffer(l, slot, "m2"), expected.m2))});
    }
  }
  return errors;
}

Errors Compare(const Scenario& scenario, int rank, Agent& agent, const Trainer& trainer,
               const Reference& reference) {
  Errors errors = CompareExperts(scenario, rank, agent, reference);
  for (int m = 0; m < scenario.micro_batches; ++m) {
    errors.outputs = std::max(errors.outputs,
                              RelativeError(trainer.Output(m).data(), reference.Output(m, rank)));
  }
  for (int l = 0; l < scenario.layers; ++l) {
    const std::vector<int> experts = agent.placement().ExpertsOf(l, rank);
    for (int slot = 0; slot < static_cast<int>(experts.size()); ++slot) {
      const Reference::Expert& expected = reference.At(l, experts[slot]);
      const auto& gradients = trainer.Gradients(l, slot);
      errors.Take({.gradients = std::max(RelativeError(gradients[0].data(), expected.g13),
                                         RelativeError(gradients[1].data(), expected.g2))});
    }
  }
  return errors;
}

std::vector<uint32_t> LoadsOf(const Scenario& s, int step) {
  std::vector<uint32_t> loads(static_cast<size_t>(s.micro_batches) * s.layers * s.experts, 0);
  for (int m = 0; m < s.micro_batches; ++m) {
    for (int r = 0; r < s.ranks(); ++r) {
      const std::vector<int32_t> routes = Routes(s, step, m, r);
      for (size_t i = 0; i < routes.size(); ++i) {
        const size_t layer = i / s.top_k % s.layers;
        ++loads[(static_cast<size_t>(m) * s.layers + layer) * s.experts + routes[i]];
      }
    }
  }
  return loads;
}

std::vector<uint32_t> ExpectedWork(const Scenario& s, const std::vector<uint32_t>& loads,
                                   const Placement& placement, const Plan* plan) {
  std::vector<uint32_t> work(static_cast<size_t>(s.micro_batches) * s.layers * s.ranks(), 0);
  for (int m = 0; m < s.micro_batches; ++m) {
    for (int l = 0; l < s.layers; ++l) {
      const size_t at = static_cast<size_t>(m) * s.layers + l;
      uint32_t* of_rank = work.data() + at * s.ranks();
      for (int e = 0; e < s.experts; ++e) {
        of_rank[placement.RankOf(l, e)] += loads[at * s.experts + e];
      }
      if (plan == nullptr) continue;
      for (const Replica& r : plan->layers[l].micro_batches[m].replicas) {
        of_rank[placement.RankOf(l, r.expert)] -= r.tokens;
        of_rank[r.rank] += r.tokens;
      }
    }
  }
  return work;
}

double Imbalance(const std::vector<uint32_t>& work, int ranks) {
  double sum = 0;
  const size_t count = work.size() / ranks;
  for (size_t i = 0; i < count; ++i) {
    const auto first = work.begin() + static_cast<ptrdiff_t>(i) * ranks;
    const double total = std::accumulate(first, first + ranks, 0.0);
    sum += total == 0 ? 1 : *std::max_element(first, first + ranks) * ranks / total;
  }
  return count == 0 ? 1 : sum / static_cast<double>(count);
}

}  // namespace relibra::agent::selftest

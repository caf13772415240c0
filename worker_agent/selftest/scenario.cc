#include "worker_agent/selftest/scenario.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace relibra::agent::selftest {
namespace {

enum Stream : uint64_t { kWeights = 1, kRouter, kInput, kTarget, kStepBias, kSequenceBias };

// Numbers that depend on nothing but the seed and what they are for.
class Random {
 public:
  Random(uint64_t seed, std::initializer_list<uint64_t> purpose) : state_(seed) {
    for (const uint64_t word : purpose) state_ = Next() ^ (word * 0x9e3779b97f4a7c15ULL);
  }

  // Standard normal (Box-Muller).
  double Normal() {
    const double u = (static_cast<double>(Next() >> 11) + 1) / 9007199254740993.0;
    const double v = static_cast<double>(Next() >> 11) / 9007199254740992.0;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }

  std::vector<float> Normals(size_t count, double deviation) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(deviation * Normal());
    return values;
  }

 private:
  uint64_t Next() {  // SplitMix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

}  // namespace

GroupShape Scenario::Shape() const {
  GroupShape shape{.nodes = nodes,
                   .gpus_per_node = gpus_per_node,
                   .replica_slots = replica_slots,
                   .experts = experts};
  for (int l = 0; l < layers; ++l) shape.layer_ids.push_back(l);
  return shape;
}

absl::Status Validate(const Scenario& s) {
  struct Field {
    const char* name;
    int value;
    int least;
    int most;
  };
  for (const Field& f :
       {Field{"layers", s.layers, 1, 64}, Field{"top_k", s.top_k, 1, s.experts},
        Field{"hidden", s.hidden, 1, 4096}, Field{"intermediate", s.intermediate, 1, 4096},
        Field{"micro_batches", s.micro_batches, 1, 1024}, Field{"sequences", s.sequences, 1, 1024},
        Field{"sequence_tokens", s.sequence_tokens, 1, 65536},
        Field{"experts", s.experts, 1, 1024}}) {
    if (f.value < f.least || f.value > f.most) {
      return absl::InvalidArgumentError(
          absl::StrCat(f.name, " is ", f.value, ", expected ", f.least, " to ", f.most));
    }
  }
  return Validate(s.Shape());
}

ExpertWeights InitialWeights(const Scenario& s, int layer, int expert) {
  Random random(s.seed, {kWeights, static_cast<uint64_t>(layer), static_cast<uint64_t>(expert)});
  const auto matrix = static_cast<size_t>(s.intermediate) * s.hidden;
  return {random.Normals(2 * matrix, 1 / std::sqrt(s.hidden)),
          random.Normals(matrix, 1 / std::sqrt(s.intermediate))};
}

std::vector<float> RouterWeights(const Scenario& s, int layer) {
  return Random(s.seed, {kRouter, static_cast<uint64_t>(layer)})
      .Normals(static_cast<size_t>(s.experts) * s.hidden, 1 / std::sqrt(s.hidden));
}

std::vector<float> Inputs(const Scenario& s, int step, int micro_batch, int rank) {
  return Random(s.seed, {kInput, static_cast<uint64_t>(step), static_cast<uint64_t>(micro_batch),
                         static_cast<uint64_t>(rank)})
      .Normals(static_cast<size_t>(s.tokens()) * s.hidden, 1);
}

std::vector<float> Targets(const Scenario& s, int step, int micro_batch, int rank) {
  return Random(s.seed, {kTarget, static_cast<uint64_t>(step), static_cast<uint64_t>(micro_batch),
                         static_cast<uint64_t>(rank)})
      .Normals(static_cast<size_t>(s.tokens()) * s.hidden, 1);
}

std::vector<int32_t> Routes(const Scenario& s, int step, int micro_batch, int rank) {
  const std::vector<float> inputs = Inputs(s, step, micro_batch, rank);
  std::vector<int32_t> routes(static_cast<size_t>(s.tokens()) * s.layers * s.top_k);
  std::vector<double> logits(s.experts);
  std::vector<int32_t> order(s.experts);
  for (int l = 0; l < s.layers; ++l) {
    const std::vector<float> router = RouterWeights(s, l);
    const std::vector<float> step_bias =
        Random(s.seed, {kStepBias, static_cast<uint64_t>(step), static_cast<uint64_t>(l)})
            .Normals(s.experts, s.skew);
    std::vector<float> sequence_bias;
    for (int t = 0; t < s.tokens(); ++t) {
      if (t % s.sequence_tokens == 0) {
        sequence_bias =
            Random(s.seed, {kSequenceBias, static_cast<uint64_t>(step), static_cast<uint64_t>(l),
                            static_cast<uint64_t>(micro_batch), static_cast<uint64_t>(rank),
                            static_cast<uint64_t>(t)})
                .Normals(s.experts, s.skew / 2);
      }
      for (int e = 0; e < s.experts; ++e) {
        logits[e] = step_bias[e] + sequence_bias[e];
        for (int h = 0; h < s.hidden; ++h) {
          logits[e] += double{router[static_cast<size_t>(e) * s.hidden + h]} *
                       inputs[static_cast<size_t>(t) * s.hidden + h];
        }
      }
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + s.top_k, order.end(), [&](int a, int b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
      });
      std::copy_n(order.begin(), s.top_k,
                  routes.begin() + (static_cast<size_t>(t) * s.layers + l) * s.top_k);
    }
  }
  return routes;
}

}  // namespace relibra::agent::selftest

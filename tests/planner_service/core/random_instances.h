// Seeded random planning problems for property tests: small ones of every shape, in which ties,
// zeros, hot experts and full slots are common.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_CORE_RANDOM_INSTANCES_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_CORE_RANDOM_INSTANCES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// The standard's distributions differ between libraries; these draws do not.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int Between(int low, int high) { return low + static_cast<int>(engine_() % (high - low + 1)); }
  bool OneIn(int n) { return Between(1, n) == 1; }
  double Unit() { return static_cast<double>(engine_() >> 11) / 9007199254740992.0; }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (int i = static_cast<int>(items.size()) - 1; i > 0; --i) {
      std::swap(items[i], items[Between(0, i)]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

struct InstanceLimits {
  int nodes = 4;
  int gpus_per_node = 4;
  int replica_slots = 3;
  int experts_per_rank = 3;
  int micro_batches = 4;
  int layers = 3;
};

struct Instance {
  Topology topology;
  Loads loads;
  Placement current;
};

inline std::ostream& operator<<(std::ostream& out, const Instance& instance) {
  const LoadShape& shape = instance.loads.shape();
  out << instance.topology.nodes << " x " << instance.topology.gpus_per_node
      << " ranks, R = " << instance.topology.replica_slots << ", E = " << shape.experts;
  for (int l = 0; l < shape.layers; ++l) {
    out << "\nlayer " << l << ", homes";
    for (int32_t rank : instance.current[l]) out << ' ' << rank;
    for (int m = 0; m < shape.micro_batches; ++m) {
      out << "\n  micro-batch " << m << ":";
      for (int e = 0; e < shape.experts; ++e) {
        uint64_t sum = 0;
        for (int s = 0; s < shape.sources; ++s) {
          sum += instance.loads.At(m, l)[s * shape.experts + e];
        }
        out << ' ' << sum;
      }
    }
  }
  return out;
}

// How the loads of one layer are drawn.
struct LoadFamily {
  double scale = 1;           // tokens a (source rank, expert) where popularity is 1
  double skew = 0;            // of the experts' popularity: exp(skew x uniform in [-1, 1])
  double drift = 0;           // the same, of each micro-batch on its own
  bool noise = true;          // each count uniform in 0..2 x its mean; else the mean itself
  int hot = -1;               // an expert with 30 times its popularity
  bool uneven_sizes = false;  // micro-batches of 1/8 to 1 of the tokens
};

inline LoadFamily DrawFamily(Draw& draw, int experts) {
  LoadFamily family;
  const double scales[] = {0.7, 3, 40, 1000, 1e5};
  family.scale = scales[draw.Between(0, 4)];
  family.noise = !draw.OneIn(4);
  family.uneven_sizes = draw.OneIn(5);
  if (!draw.OneIn(4)) family.skew = 0.5 * draw.Between(1, 4);
  if (!draw.OneIn(3)) family.drift = 0.4 * draw.Between(1, 4);
  if (draw.OneIn(4)) family.hot = draw.Between(0, experts - 1);
  return family;
}

inline void DrawLayer(Draw& draw, const LoadFamily& family, int layer, Loads& loads) {
  const LoadShape& shape = loads.shape();
  const auto popularity = [&](double skew) { return std::exp(skew * (2 * draw.Unit() - 1)); };
  std::vector<double> popular(shape.experts);
  for (double& p : popular) p = popularity(family.skew);
  if (family.hot >= 0) popular[family.hot] *= 30;
  for (int m = 0; m < shape.micro_batches; ++m) {
    if (draw.OneIn(12)) continue;  // an empty micro-batch
    const double size = family.uneven_sizes ? 1.0 / draw.Between(1, 8) : 1;
    for (int e = 0; e < shape.experts; ++e) {
      const double mean = family.scale * size * popular[e] * popularity(family.drift);
      for (int s = 0; s < shape.sources; ++s) {
        const double tokens = family.noise ? 2 * mean * draw.Unit() : mean;
        loads.Mutable(m, layer)[s * shape.experts + e] = static_cast<uint32_t>(std::lround(tokens));
      }
    }
  }
}

inline Instance DrawInstance(Draw& draw, const InstanceLimits& limits = {}) {
  const Topology topology{draw.Between(1, limits.nodes), draw.Between(1, limits.gpus_per_node),
                          draw.Between(0, limits.replica_slots)};
  const LoadShape shape{draw.Between(1, limits.micro_batches), draw.Between(1, limits.layers),
                        topology.num_ranks(),
                        topology.num_ranks() * draw.Between(1, limits.experts_per_rank)};
  Instance instance{topology, *Loads::Create(shape),
                    LinearPlacement(topology, shape.layers, shape.experts)};
  for (int l = 0; l < shape.layers; ++l) {
    if (draw.OneIn(3)) draw.Shuffle(instance.current[l]);
    if (draw.OneIn(15)) continue;  // a layer without tokens
    DrawLayer(draw, DrawFamily(draw, shape.experts), l, instance.loads);
  }
  return instance;
}

}  // namespace relibra

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_CORE_RANDOM_INSTANCES_H_

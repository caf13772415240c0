#include "planner_service/core/anneal.h"

#include <algorithm>

namespace relibra {
namespace {

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Uniform in [0, n), n < 2^32.
  uint32_t Below(uint32_t n) {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    return static_cast<uint32_t>(((x >> 32) * n) >> 32);
  }

 private:
  uint64_t state_;
};

// The sum over micro-batches of the mean group load: the objective of perfect groups.
int64_t PerfectObjective(const ExpertLoads& loads, int groups) {
  int64_t total = 0;
  for (int e = 0; e < loads.experts(); ++e) {
    for (int m = 0; m < loads.micro_batches(); ++m) total += loads.Row(e)[m];
  }
  return total / groups;
}

}  // namespace

std::vector<int32_t> Anneal(const ExpertLoads& loads, int groups, const std::vector<int32_t>& start,
                            int64_t tries, uint64_t seed) {
  // Thresholds as shares of what there is to gain; they suit 2 to 16 nodes and 16 to 64
  // micro-batches.
  constexpr double kFirst = 0.05;
  NodeLoads state(loads, groups, start);
  std::vector<int32_t> best = start;
  int64_t best_objective = state.Objective();
  const double excess =
      static_cast<double>(std::max<int64_t>(0, best_objective - PerfectObjective(loads, groups)));
  if (excess == 0 || loads.experts() <= groups) return best;
  Random random(seed);
  for (int64_t i = 0; i < tries; ++i) {
    const int e = static_cast<int>(random.Below(loads.experts()));
    const int f = static_cast<int>(random.Below(loads.experts()));
    if (state.NodeOf(e) == state.NodeOf(f)) continue;
    const double done = static_cast<double>(i) / static_cast<double>(tries);
    const double threshold = excess * kFirst * (1 - done) * (1 - done);
    const int64_t after = state.ObjectiveAfterSwap(e, f);
    if (static_cast<double>(after - state.Objective()) > threshold) continue;
    state.Swap(e, f);
    if (state.Objective() < best_objective) {
      best_objective = state.Objective();
      best = state.nodes();
    }
  }
  NodeLoads end(loads, groups, best);
  end.Descend(8);
  return end.nodes();
}

}  // namespace relibra

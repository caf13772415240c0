#include "planner_service/core/gram_swaps.h"

#include <algorithm>
#include <numeric>

#include "planner_service/core/multiversion.h"

namespace relibra {
namespace {

// out[f] += scale * row[f]; lane-wise, so every instruction set gives the same bits.
RELIBRA_MULTIVERSION void AddScaled(const float* row, float scale, int n, float* out) {
  for (int f = 0; f < n; ++f) out[f] += scale * row[f];
}

// shift[f] = to[f] - from[f]; plus[f] += shift[f]; minus[f] -= shift[f].
RELIBRA_MULTIVERSION void Exchange(const float* to, const float* from, int n, float* plus,
                                   float* minus) {
  for (int f = 0; f < n; ++f) {
    const float shift = to[f] - from[f];
    plus[f] += shift;
    minus[f] -= shift;
  }
}

// cost[f] of swapping e (in group a) with f, less what depends on e alone:
//   S[a][f] - own[f] + S[node f][e] - 2 C[e][f], with own[f] = S[node f][f] - C[f][f].
RELIBRA_MULTIVERSION void SwapCosts(const float* to_a, const float* own, const float* e_to,
                                    const float* gram, const int32_t* node, int n, float* cost) {
  for (int f = 0; f < n; ++f) cost[f] = to_a[f] - own[f] + e_to[node[f]] - 2 * gram[f];
}

class GramSearch {
 public:
  GramSearch(const ExpertLoads& loads, int groups)
      : experts_(loads.experts()),
        groups_(groups),
        gram_(size_t{1} * experts_ * experts_),
        common_(size_t{1} * groups * experts_),
        own_(experts_),
        node_(experts_, -1) {
    FillGram(loads);
  }

  void Place(const std::vector<int32_t>& start) {
    node_ = start;
    for (int e = 0; e < experts_; ++e) AddScaled(Gram(e), 1, experts_, Common(node_[e]));
    for (int e = 0; e < experts_; ++e) UpdateOwn(e);
  }

  void PlaceGreedily() {
    std::vector<int> order(experts_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return Gram(a)[a] > Gram(b)[b]; });
    std::vector<int> room(groups_, experts_ / groups_);
    for (int e : order) {
      int best = -1;
      for (int g = 0; g < groups_; ++g) {
        if (room[g] > 0 && (best < 0 || Common(g)[e] < Common(best)[e])) best = g;
      }
      node_[e] = best;
      --room[best];
      AddScaled(Gram(e), 1, experts_, Common(best));
    }
    for (int e = 0; e < experts_; ++e) UpdateOwn(e);
  }

  // Each expert's best swap, sweep after sweep, until a sweep finds none.
  void Improve() {
    constexpr int kMostSweeps = 50;
    constexpr float kLeastGain = 1e-7f;
    std::vector<float> cost(experts_), e_to(groups_);
    bool better = true;
    for (int sweep = 0; better && sweep < kMostSweeps; ++sweep) {
      better = false;
      for (int e = 0; e < experts_; ++e) {
        const int a = node_[e];
        for (int g = 0; g < groups_; ++g) e_to[g] = Common(g)[e];
        SwapCosts(Common(a), own_.data(), e_to.data(), Gram(e), node_.data(), experts_,
                  cost.data());
        int best = -1;
        for (int f = 0; f < experts_; ++f) {
          if (node_[f] != a && (best < 0 || cost[f] < cost[best])) best = f;
        }
        if (best < 0 || cost[best] - Common(a)[e] + Gram(e)[e] > -kLeastGain) continue;
        Swap(e, best);
        better = true;
      }
    }
  }

  std::vector<int32_t> TakeNodes() { return std::move(node_); }

 private:
  const float* Gram(int e) const { return &gram_[size_t{1} * e * experts_]; }
  float* Common(int g) { return &common_[size_t{1} * g * experts_]; }
  void UpdateOwn(int e) { own_[e] = Common(node_[e])[e] - Gram(e)[e]; }

  void FillGram(const ExpertLoads& loads) {
    const int micro_batches = loads.micro_batches();
    std::vector<float> shares(size_t{1} * micro_batches * experts_);  // [M, E]
    for (int m = 0; m < micro_batches; ++m) {
      int64_t total = 0;
      for (int e = 0; e < experts_; ++e) total += loads.Row(e)[m];
      if (total == 0) continue;
      for (int e = 0; e < experts_; ++e) {
        shares[size_t{1} * m * experts_ + e] =
            static_cast<float>(loads.Row(e)[m]) / static_cast<float>(total);
      }
    }
    for (int e = 0; e < experts_; ++e) {
      float* row = &gram_[size_t{1} * e * experts_];
      for (int m = 0; m < micro_batches; ++m) {
        const float* all = &shares[size_t{1} * m * experts_];
        if (all[e] != 0) AddScaled(all, all[e] * experts_, experts_, row);
      }
    }
  }

  void Swap(int e, int f) {
    Exchange(Gram(f), Gram(e), experts_, Common(node_[e]), Common(node_[f]));
    std::swap(node_[e], node_[f]);
    for (int g = 0; g < experts_; ++g) {
      if (node_[g] == node_[e] || node_[g] == node_[f]) UpdateOwn(g);
    }
  }

  int experts_, groups_;
  std::vector<float> gram_;    // C: [E, E]
  std::vector<float> common_;  // S: [groups, E], y_g . x_e
  std::vector<float> own_;     // [E]
  std::vector<int32_t> node_;  // [E]
};

}  // namespace

std::vector<int32_t> GramSwaps(const ExpertLoads& loads, int groups,
                               const std::optional<std::vector<int32_t>>& start) {
  GramSearch search(loads, groups);
  if (start) {
    search.Place(*start);
  } else {
    search.PlaceGreedily();
  }
  search.Improve();
  return search.TakeNodes();
}

}  // namespace relibra

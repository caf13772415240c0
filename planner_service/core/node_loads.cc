#include "planner_service/core/node_loads.h"

#include <algorithm>
#include <utility>

#include "planner_service/core/multiversion.h"

namespace relibra {
namespace {

constexpr int kVector = 16;  // int32s of the widest vector

// One vector of loads; the compiler splits it where the machine's are narrower.
typedef int32_t Lanes
    __attribute__((vector_size(kVector * sizeof(int32_t)), may_alias, aligned(4)));

// Sum over micro-batches of the heaviest group after e of group a and f of group b change places.
// load: [groups, stride].
RELIBRA_MULTIVERSION int32_t SwapObjective(const int32_t* load, int groups, int stride, int a,
                                           int b, const int32_t* e, const int32_t* f) {
  const int vectors = stride / kVector;
  const Lanes* rows = reinterpret_cast<const Lanes*>(load);
  const Lanes* out = reinterpret_cast<const Lanes*>(e);
  const Lanes* in = reinterpret_cast<const Lanes*>(f);
  Lanes sums = {};
  for (int v = 0; v < vectors; ++v) {
    const Lanes shift = in[v] - out[v];
    const Lanes new_a = rows[a * vectors + v] + shift;
    const Lanes new_b = rows[b * vectors + v] - shift;
    Lanes most = new_a > new_b ? new_a : new_b;
    for (int g = 0; g < groups; ++g) {
      if (g == a || g == b) continue;
      const Lanes row = rows[g * vectors + v];
      most = row > most ? row : most;
    }
    sums += most;
  }
  int32_t sum = 0;
  for (int i = 0; i < kVector; ++i) sum += sums[i];
  return sum;
}

// The first f of `candidates` whose swap with e lowers `objective`, or -1.
RELIBRA_MULTIVERSION int FirstBetter(const int32_t* others, const int32_t* a, const int32_t* b,
                                     const int32_t* e, const int32_t* rows,
                                     const int32_t* candidates, int count, int stride,
                                     int32_t objective) {
  for (int i = 0; i < count; ++i) {
    const int32_t* f = rows + static_cast<int64_t>(candidates[i]) * stride;
    int32_t sum = 0;
    for (int m = 0; m < stride; ++m) {
      const int32_t shift = f[m] - e[m];
      sum += std::max(others[m], std::max(a[m] + shift, b[m] - shift));
    }
    if (sum < objective) return i;
  }
  return -1;
}

RELIBRA_MULTIVERSION void MaxInto(const int32_t* row, int stride, int32_t* out) {
  for (int m = 0; m < stride; ++m) out[m] = std::max(out[m], row[m]);
}

}  // namespace

ExpertLoads::ExpertLoads(absl::Span<const uint32_t> totals, int experts)
    : experts_(experts),
      micro_batches_(static_cast<int>(totals.size()) / experts),
      stride_((micro_batches_ + kVector - 1) / kVector * kVector),
      rows_(size_t{1} * experts * stride_) {
  int64_t most = 0;
  for (int m = 0; m < micro_batches_; ++m) {
    int64_t sum = 0;
    for (int e = 0; e < experts; ++e) sum += totals[size_t{1} * m * experts + e];
    most = std::max(most, sum);
  }
  int shift = 0;
  while ((most >> shift) * micro_batches_ >= (int64_t{1} << 30)) ++shift;
  for (int e = 0; e < experts; ++e) {
    for (int m = 0; m < micro_batches_; ++m) {
      rows_[size_t{1} * e * stride_ + m] =
          static_cast<int32_t>(totals[size_t{1} * m * experts + e] >> shift);
    }
  }
}

NodeLoads::NodeLoads(const ExpertLoads& loads, int groups, std::vector<int32_t> node)
    : loads_(loads),
      groups_(groups),
      stride_(loads.stride()),
      node_(std::move(node)),
      members_(groups),
      place_(node_.size()),
      load_(size_t{1} * groups * stride_) {
  for (int e = 0; e < loads.experts(); ++e) {
    place_[e] = static_cast<int32_t>(members_[node_[e]].size());
    members_[node_[e]].push_back(e);
    int32_t* row = Row(node_[e]);
    const int32_t* add = loads.Row(e);
    for (int m = 0; m < stride_; ++m) row[m] += add[m];
  }
  std::vector<int32_t> most(stride_);
  for (int g = 0; g < groups; ++g) MaxInto(Row(g), stride_, most.data());
  for (int32_t load : most) objective_ += load;
}

void NodeLoads::MaxOfOthers(int a, int b, int32_t* out) const {
  std::fill(out, out + stride_, 0);
  for (int g = 0; g < groups_; ++g) {
    if (g != a && g != b) MaxInto(Row(g), stride_, out);
  }
}

int64_t NodeLoads::ObjectiveAfterSwap(int e, int f) const {
  return SwapObjective(load_.data(), groups_, stride_, node_[e], node_[f], loads_.Row(e),
                       loads_.Row(f));
}

std::vector<int> NodeLoads::HeaviestGroups() const {
  std::vector<int64_t> stands_out(groups_, -1);
  for (int m = 0; m < loads_.micro_batches(); ++m) {
    int first = 0, second = -1;
    for (int g = 1; g < groups_; ++g) {
      if (Row(g)[m] > Row(first)[m]) {
        second = first;
        first = g;
      } else if (second < 0 || Row(g)[m] > Row(second)[m]) {
        second = g;
      }
    }
    stands_out[first] = std::max<int64_t>(stands_out[first], 0) + Row(first)[m] - Row(second)[m];
  }
  std::vector<int> heaviest;
  for (int g = 0; g < groups_; ++g) {
    if (stands_out[g] >= 0) heaviest.push_back(g);
  }
  std::stable_sort(heaviest.begin(), heaviest.end(),
                   [&](int a, int b) { return stands_out[a] > stands_out[b]; });
  return heaviest;
}

void NodeLoads::Swap(int e, int f) {
  objective_ = ObjectiveAfterSwap(e, f);
  int32_t *a = Row(node_[e]), *b = Row(node_[f]);
  const int32_t *out = loads_.Row(e), *in = loads_.Row(f);
  for (int m = 0; m < stride_; ++m) {
    a[m] += in[m] - out[m];
    b[m] += out[m] - in[m];
  }
  std::swap(members_[node_[e]][place_[e]], members_[node_[f]][place_[f]]);
  std::swap(place_[e], place_[f]);
  std::swap(node_[e], node_[f]);
}

bool NodeLoads::DescendPair(int a, int b) {
  std::vector<int32_t> others(stride_);
  MaxOfOthers(a, b, others.data());
  bool better = false;
  for (size_t i = 0; i < members_[a].size(); ++i) {
    const int e = members_[a][i];
    const int found = FirstBetter(others.data(), Row(a), Row(b), loads_.Row(e), loads_.Row(0),
                                  members_[b].data(), static_cast<int>(members_[b].size()), stride_,
                                  static_cast<int32_t>(objective_));
    if (found < 0) continue;
    Swap(e, members_[b][found]);
    better = true;
  }
  return better;
}

void NodeLoads::Descend(int passes) {
  for (bool better = true; better && passes > 0; --passes) {
    better = false;
    for (int a = 0; a < groups_; ++a) {
      for (int b = a + 1; b < groups_; ++b) better |= DescendPair(a, b);
    }
  }
}

}  // namespace relibra

#include "planner_service/core/static_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace relibra {
namespace {

// A step must lower the fullest GPU by this share of its load, so that rounding makes no endless
// chain of steps.
constexpr double kLeastGain = 1e-9;

}  // namespace

StaticLayout::StaticLayout(int experts, int physical, int nodes, int gpus)
    : experts_(experts),
      physical_(physical),
      nodes_(nodes),
      gpus_(gpus),
      node_experts_(experts / nodes),
      node_gpus_(gpus / nodes),
      slots_(physical / gpus),
      in_node_(experts),
      logical_(experts),
      weight_(experts),
      share_(experts),
      node_mean_(nodes),
      count_(experts),
      replicas_(physical),
      sorted_(physical / nodes),
      slot_expert_(physical),
      slot_share_(physical),
      used_(gpus),
      load_(gpus),
      holds_(size_t{1} * gpus * node_experts_) {
  heap_.reserve(node_experts_);
  open_.reserve(node_gpus_);
  skipped_.reserve(node_gpus_);
  for (int e = 0; e < experts; ++e) in_node_[e] = e % node_experts_;
}

void StaticLayout::Assign(absl::Span<const int> order, absl::Span<const double> weight) {
  for (int e = 0; e < experts_; ++e) {
    logical_[e] = order[e];
    weight_[e] = weight[order[e]];
  }
  for (int n = 0; n < nodes_; ++n) {
    const auto first = weight_.begin() + n * node_experts_;
    node_mean_[n] = std::accumulate(first, first + node_experts_, 0.0) / node_gpus_;
  }
}

void StaticLayout::Replicate(int cap) {
  std::fill(count_.begin(), count_.end(), 1);
  share_ = weight_;
  // The largest share on top, then the lowest expert.
  const auto below = [](const std::pair<double, int>& a, const std::pair<double, int>& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  const int node_slots = physical_ / nodes_;
  for (int n = 0; n < nodes_; ++n) {
    int* const replicas = replicas_.data() + n * node_slots;
    heap_.clear();
    for (int i = 0; i < node_experts_; ++i) {
      const int e = n * node_experts_ + i;
      replicas[i] = e;
      if (cap > 1) heap_.emplace_back(weight_[e], e);
    }
    std::make_heap(heap_.begin(), heap_.end(), below);
    for (int i = node_experts_; i < node_slots; ++i) {
      std::pop_heap(heap_.begin(), heap_.end(), below);
      const int e = heap_.back().second;
      replicas[i] = e;
      share_[e] = weight_[e] / ++count_[e];
      if (count_[e] < cap) {
        heap_.back().first = share_[e];
        std::push_heap(heap_.begin(), heap_.end(), below);
      } else {
        heap_.pop_back();
      }
    }
  }
}

void StaticLayout::SortReplicas(int node) {
  const int* const replicas = replicas_.data() + size_t{1} * node * sorted_.size();
  std::iota(sorted_.begin(), sorted_.end(), 0);
  std::sort(sorted_.begin(), sorted_.end(), [&](int a, int b) {
    const double share_a = share_[replicas[a]], share_b = share_[replicas[b]];
    return share_a != share_b ? share_a > share_b : a < b;
  });
  for (int& index : sorted_) index = replicas[index];
}

void StaticLayout::Clear() {
  std::fill(used_.begin(), used_.end(), 0);
  std::fill(load_.begin(), load_.end(), 0.0);
  std::fill(holds_.begin(), holds_.end(), 0);
}

void StaticLayout::Put(int gpu, int expert) {
  const int slot = gpu * slots_ + used_[gpu]++;
  slot_expert_[slot] = expert;
  slot_share_[slot] = share_[expert];
  load_[gpu] += share_[expert];
  ++Holds(gpu, expert);
}

void StaticLayout::SetSlot(int slot, int expert) {
  const int gpu = slot / slots_, old = slot_expert_[slot];
  --Holds(gpu, old);
  ++Holds(gpu, expert);
  slot_expert_[slot] = expert;
  slot_share_[slot] = share_[expert];
}

// The open GPU with the least load is on top, ties to the lower index.
void StaticLayout::FillOpenGpus(int node) {
  open_.clear();
  for (int g = node * node_gpus_; g < (node + 1) * node_gpus_; ++g) {
    if (used_[g] < slots_) open_.emplace_back(load_[g], g);
  }
  std::make_heap(open_.begin(), open_.end(), std::greater<>());
}

int StaticLayout::PopOpenGpu() {
  std::pop_heap(open_.begin(), open_.end(), std::greater<>());
  const int gpu = open_.back().second;
  open_.pop_back();
  return gpu;
}

void StaticLayout::PushOpenGpu(int gpu) {
  if (used_[gpu] == slots_) return;
  open_.emplace_back(load_[gpu], gpu);
  std::push_heap(open_.begin(), open_.end(), std::greater<>());
}

void StaticLayout::PackFreely() {
  Clear();
  for (int n = 0; n < nodes_; ++n) {
    SortReplicas(n);
    FillOpenGpus(n);
    for (const int expert : sorted_) {
      const int gpu = PopOpenGpu();
      Put(gpu, expert);
      PushOpenGpu(gpu);
    }
  }
}

void StaticLayout::PackApart() {
  Clear();
  for (int n = 0; n < nodes_; ++n) {
    SortReplicas(n);
    FillOpenGpus(n);
    for (const int expert : sorted_) {
      skipped_.clear();
      int gpu = -1;
      while (!open_.empty() && gpu < 0) {
        const int lightest = PopOpenGpu();
        if (Holds(lightest, expert) == 0) {
          gpu = lightest;
        } else {
          skipped_.push_back(lightest);
        }
      }
      if (gpu < 0) {
        PutByPassingOn(n, expert);
        FillOpenGpus(n);
        continue;
      }
      Put(gpu, expert);
      PushOpenGpu(gpu);
      for (const int skipped : skipped_) PushOpenGpu(skipped);
    }
  }
}

// There is always a way: the expert has fewer replicas placed than the node has GPUs, so some GPU
// does not hold it, and that one is full; of its experts at least one is not on the GPU with the
// free slot, which holds fewer.
void StaticLayout::PutByPassingOn(int node, int expert) {
  const int first = node * node_gpus_;
  int open = -1;
  for (int g = first; g < first + node_gpus_; ++g) {
    if (used_[g] < slots_ && (open < 0 || load_[g] < load_[open])) open = g;
  }
  int best = -1;
  double best_load = 0;
  for (int g = first; g < first + node_gpus_; ++g) {
    if (Holds(g, expert) > 0) continue;
    for (int slot = g * slots_; slot < (g + 1) * slots_; ++slot) {
      if (Holds(open, slot_expert_[slot]) > 0) continue;
      const double load =
          std::max(load_[g] - slot_share_[slot] + share_[expert], load_[open] + slot_share_[slot]);
      if (best < 0 || load < best_load) {
        best = slot;
        best_load = load;
      }
    }
  }
  const int passed_on = slot_expert_[best];
  Put(open, passed_on);
  load_[best / slots_] += share_[expert] - share_[passed_on];
  SetSlot(best, expert);
}

void StaticLayout::Refine(bool apart, double target) {
  const int most_steps = 8 * gpus_;
  for (int step = 0; step < most_steps; ++step) {
    const int fullest =
        static_cast<int>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    if (load_[fullest] <= target) return;
    if (!Swap(fullest, apart) && !Shift(fullest)) return;
  }
}

bool StaticLayout::Swap(int fullest, bool apart) {
  const int first = fullest / node_gpus_ * node_gpus_;
  const double full = load_[fullest];
  double best = full * (1 - kLeastGain);
  int best_slot = -1, best_other = -1;
  const auto consider = [&](int g) {
    // No swap does better than halving the difference.
    if (g == fullest || (full + load_[g]) / 2 >= best) return;
    for (int slot = fullest * slots_; slot < (fullest + 1) * slots_; ++slot) {
      for (int other = g * slots_; other < (g + 1) * slots_; ++other) {
        const double difference = slot_share_[slot] - slot_share_[other];
        const double load = std::max(full - difference, load_[g] + difference);
        if (load >= best) continue;
        if (apart &&
            (Holds(g, slot_expert_[slot]) > 0 || Holds(fullest, slot_expert_[other]) > 0)) {
          continue;
        }
        best = load;
        best_slot = slot;
        best_other = other;
      }
    }
  };
  // The lightest first: what it gives mostly rules the others out at a glance.
  const auto gpus = load_.begin() + first;
  const int lightest = first + static_cast<int>(std::min_element(gpus, gpus + node_gpus_) - gpus);
  consider(lightest);
  for (int g = first; g < first + node_gpus_; ++g) {
    if (g != lightest) consider(g);
  }
  if (best_slot < 0) return false;
  ApplySwap(best_slot, best_other);
  return true;
}

void StaticLayout::ApplySwap(int slot, int other) {
  const double difference = slot_share_[slot] - slot_share_[other];
  load_[slot / slots_] -= difference;
  load_[other / slots_] += difference;
  const int expert = slot_expert_[slot];
  SetSlot(slot, slot_expert_[other]);
  SetSlot(other, expert);
}

// Either an expert of the fullest GPU gets one more replica elsewhere, or a slot of the fullest GPU
// goes to an expert that weighs less there.
bool StaticLayout::Shift(int fullest) {
  const int node = fullest / node_gpus_;
  const int first_slot = node * node_gpus_ * slots_;
  const int node_slots = node_gpus_ * slots_;
  const auto gpus = load_.begin() + node * node_gpus_;
  const double lightest = *std::min_element(gpus, gpus + node_gpus_);
  double best = load_[fullest] * (1 - kLeastGain);
  int best_slot = -1, best_expert = -1;
  const auto consider = [&](int slot, int expert) {
    if (count_[expert] >= node_gpus_ || Holds(slot / slots_, expert) > 0) return;
    const double load = LoadAfterShift(slot, expert, lightest, best);
    if (load >= best) return;
    best = load;
    best_slot = slot;
    best_expert = expert;
  };
  for (int slot = first_slot; slot < first_slot + node_slots; ++slot) {
    if (count_[slot_expert_[slot]] == 1) continue;
    if (slot / slots_ == fullest) {
      for (int i = 0; i < node_experts_; ++i) consider(slot, node * node_experts_ + i);
    } else {
      for (int own = fullest * slots_; own < (fullest + 1) * slots_; ++own) {
        consider(slot, slot_expert_[own]);
      }
    }
  }
  if (best_slot < 0) return false;
  ApplyShift(best_slot, best_expert);
  return true;
}

double StaticLayout::LoadAfterShift(int slot, int expert, double lightest, double bound) const {
  const int gpu = slot / slots_, old = slot_expert_[slot];
  const int first = gpu / node_gpus_ * node_gpus_;
  const double expert_share = weight_[expert] / (count_[expert] + 1);
  const double old_share = weight_[old] / (count_[old] - 1);
  const double gained = old_share - share_[old], lost = share_[expert] - expert_share;
  // Two glances rule most candidates out: at another holder of the old expert, which gains at least
  // this much, and at the GPU of the slot.
  if (Holds(gpu, old) == 1 && lightest + gained - lost >= bound) return bound;
  double most = load_[gpu] + Holds(gpu, old) * gained + expert_share - old_share;
  for (int g = first; g < first + node_gpus_ && most < bound; ++g) {
    const int old_held = Holds(g, old), expert_held = Holds(g, expert);
    if (g == gpu || (old_held == 0 && expert_held == 0)) continue;
    most = std::max(most, load_[g] + old_held * gained - expert_held * lost);
  }
  return std::min(most, bound);
}

void StaticLayout::ApplyShift(int slot, int expert) {
  const int gpu = slot / slots_, old = slot_expert_[slot];
  const int first = gpu / node_gpus_ * node_gpus_;
  share_[expert] = weight_[expert] / ++count_[expert];
  share_[old] = weight_[old] / --count_[old];
  SetSlot(slot, expert);
  for (int g = first; g < first + node_gpus_; ++g) {
    double load = 0;
    for (int s = g * slots_; s < (g + 1) * slots_; ++s) {
      slot_share_[s] = share_[slot_expert_[s]];
      load += slot_share_[s];
    }
    load_[g] = load;
  }
}

void StaticLayout::SpreadDuplicates() {
  const double most = *std::max_element(load_.begin(), load_.end());
  for (int slot = 0; slot < physical_; ++slot) {
    const int gpu = slot / slots_, expert = slot_expert_[slot];
    if (Holds(gpu, expert) < 2) continue;
    const int first = gpu / node_gpus_ * node_gpus_;
    for (int other = first * slots_; other < (first + node_gpus_) * slots_; ++other) {
      const int other_gpu = other / slots_;
      if (Holds(other_gpu, expert) > 0 || Holds(gpu, slot_expert_[other]) > 0) continue;
      const double difference = slot_share_[slot] - slot_share_[other];
      if (load_[gpu] - difference > most || load_[other_gpu] + difference > most) continue;
      ApplySwap(slot, other);
      break;
    }
  }
}

double StaticLayout::Floor() const {
  return *std::max_element(node_mean_.begin(), node_mean_.end());
}

double StaticLayout::MaxLoad() const {
  double most = 0;
  for (int g = 0; g < gpus_; ++g) {
    const auto first = slot_share_.begin() + g * slots_;
    most = std::max(most, std::accumulate(first, first + slots_, 0.0));
  }
  return most;
}

void StaticLayout::Write(absl::Span<int64_t> physical_to_logical,
                         absl::Span<int64_t> replica_count) const {
  for (int slot = 0; slot < physical_; ++slot) {
    physical_to_logical[slot] = logical_[slot_expert_[slot]];
  }
  for (int g = 0; g < gpus_; ++g) {
    std::sort(physical_to_logical.begin() + g * slots_,
              physical_to_logical.begin() + (g + 1) * slots_);
  }
  for (int e = 0; e < experts_; ++e) replica_count[logical_[e]] = count_[e];
}

}  // namespace relibra

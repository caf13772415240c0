#include "planner_service/core/node_fill.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace relibra {
namespace {

// Sets of ranks are enumerated only where their number is small.
constexpr int kMostRanksInSets = 8;

}  // namespace

void NodeFill::Clear(int slots) {
  std::fill(load_.begin(), load_.end(), 0);
  std::fill(free_slots_.begin(), free_slots_.end(), slots);
  for (std::vector<Item>& items : items_) items.clear();
  copies_.clear();
}

void NodeFill::AddHome(int gpu, int32_t expert, int64_t tokens) {
  load_[gpu] += tokens;
  if (tokens > 0) items_[gpu].push_back({expert, tokens});
}

void NodeFill::AddFixed(int gpu, int64_t tokens) {
  load_[gpu] += tokens;
  --free_slots_[gpu];
}

int64_t NodeFill::total() const { return std::accumulate(load_.begin(), load_.end(), int64_t{0}); }

int64_t NodeFill::max_load() const { return *std::max_element(load_.begin(), load_.end()); }

int64_t NodeFill::least_target() const { return (total() + gpus() - 1) / gpus(); }

bool NodeFill::Holds(int gpu, int32_t expert) const {
  return std::any_of(copies_.begin(), copies_.end(),
                     [&](const Copy& copy) { return copy.to == gpu && copy.expert == expert; });
}

void NodeFill::Ship(int from, int item, int to, int64_t tokens) {
  items_[from][item].tokens -= tokens;
  load_[from] -= tokens;
  load_[to] += tokens;
  --free_slots_[to];
  copies_.push_back({items_[from][item].expert, from, to, tokens});
}

void NodeFill::UndoTo(size_t count) {
  while (copies_.size() > count) {
    const Copy& copy = copies_.back();
    for (Item& item : items_[copy.from]) {
      if (item.expert == copy.expert) item.tokens += copy.tokens;
    }
    load_[copy.from] += copy.tokens;
    load_[copy.to] -= copy.tokens;
    ++free_slots_[copy.to];
    copies_.pop_back();
  }
}

void NodeFill::KeepEarlier(int64_t target, const std::vector<Copy>& earlier) {
  for (const Copy& copy : earlier) {
    const int64_t surplus = load_[copy.from] - target, space = target - load_[copy.to];
    if (surplus <= 0 || space <= 0 || free_slots_[copy.to] == 0) continue;
    const int64_t tokens = std::min(surplus, space);
    for (size_t i = 0; i < items_[copy.from].size(); ++i) {
      const Item& item = items_[copy.from][i];
      // One that settles neither rank would cost a further copy later.
      if (item.expert == copy.expert && item.tokens >= tokens) {
        Ship(copy.from, static_cast<int>(i), copy.to, tokens);
        break;
      }
    }
  }
}

int NodeFill::PickItem(int from, int to, int64_t amount) const {
  int best = -1;
  int64_t best_tokens = 0;
  for (size_t i = 0; i < items_[from].size(); ++i) {
    const int64_t tokens = items_[from][i].tokens;
    const bool better =
        best_tokens >= amount ? tokens >= amount && tokens < best_tokens : tokens > best_tokens;
    if (better && !Holds(to, items_[from][i].expert)) {
      best = static_cast<int>(i);
      best_tokens = tokens;
    }
  }
  return best;
}

bool NodeFill::FillBy(Choice choice, int64_t target, absl::Span<const int> ranks) {
  while (true) {
    int from = -1, to = -1;
    for (int gpu : ranks) {
      if (from < 0 || load_[gpu] > load_[from]) from = gpu;
    }
    const int64_t surplus = load_[from] - target;
    if (surplus <= 0) return true;
    for (int gpu : ranks) {
      if (free_slots_[gpu] <= 0 || load_[gpu] >= target) continue;
      if (to < 0) {
        to = gpu;
      } else if (choice == Choice::kAlias) {
        if (load_[gpu] < load_[to]) to = gpu;
      } else {
        const bool fits = target - load_[gpu] >= surplus, best_fits = target - load_[to] >= surplus;
        if (fits != best_fits ? fits : fits ? load_[gpu] > load_[to] : load_[gpu] < load_[to]) {
          to = gpu;
        }
      }
    }
    if (to < 0) return false;
    const int64_t space = target - load_[to];
    // With its last slot a rank must be filled: nothing can be added to it later.
    const int64_t amount =
        choice == Choice::kAlias && free_slots_[to] == 1 ? space : std::min(surplus, space);
    const int item = PickItem(from, to, amount);
    if (item < 0) return false;
    Ship(from, item, to, std::min(amount, items_[from][item].tokens));
  }
}

bool NodeFill::FillSets(int64_t target, absl::Span<const int> ranks) {
  const int count = static_cast<int>(ranks.size());
  if (count >= 2 && count <= kMostRanksInSets) {
    // What each set is above the target; a split is free where neither side needs the other. Sets
    // without the last rank stand for both sides.
    int64_t above[1 << kMostRanksInSets];
    int8_t sizes_of[1 << kMostRanksInSets];
    above[0] = 0;
    sizes_of[0] = 0;
    const unsigned half = 1u << (count - 1);
    for (unsigned set = 1; set < half; ++set) {
      const int rank = ranks[std::countr_zero(set)];
      above[set] = above[set & (set - 1)] + load_[rank] - target;
      sizes_of[set] = static_cast<int8_t>(sizes_of[set & (set - 1)] + 1);
    }
    const int64_t all_above = above[half - 1] + load_[ranks[count - 1]] - target;
    unsigned chosen = 0;
    int chosen_size = count;
    for (unsigned set = 1; set < half; ++set) {
      if (above[set] > 0 || above[set] < all_above) continue;
      const int size = std::min<int>(sizes_of[set], count - sizes_of[set]);
      if (size < chosen_size) chosen = set, chosen_size = size;
    }
    if (chosen != 0) {
      int parts[2][kMostRanksInSets];
      size_t sizes[2] = {0, 0};
      for (int i = 0; i < count; ++i) {
        const int part = chosen >> i & 1;
        parts[part][sizes[part]++] = ranks[i];
      }
      const size_t before = copies_.size();
      if (FillSets(target, {parts[1], sizes[1]}) && FillSets(target, {parts[0], sizes[0]})) {
        return true;
      }
      UndoTo(before);
    }
  }
  const size_t before = copies_.size();
  // Alias filling never needs more than one copy a rank less one.
  if (FillBy(Choice::kBestFit, target, ranks) && copies_.size() - before < ranks.size())
    return true;
  UndoTo(before);
  if (FillBy(Choice::kAlias, target, ranks)) return true;
  UndoTo(before);
  if (FillBy(Choice::kBestFit, target, ranks)) return true;
  UndoTo(before);
  return false;
}

bool NodeFill::Search(int64_t target, int& steps) {
  const int from = static_cast<int>(std::max_element(load_.begin(), load_.end()) - load_.begin());
  const int64_t surplus = load_[from] - target;
  if (surplus <= 0) return true;
  for (int to = 0; to < gpus(); ++to) {
    if (free_slots_[to] <= 0 || load_[to] >= target) continue;
    const int64_t space = target - load_[to];
    for (size_t i = 0; i < items_[from].size(); ++i) {
      const Item item = items_[from][i];
      if (item.tokens == 0 || Holds(to, item.expert)) continue;
      const int64_t all = std::min(space, item.tokens), needed = std::min(all, surplus);
      for (int64_t tokens : {needed, all}) {
        if (--steps < 0) return false;
        Ship(from, static_cast<int>(i), to, tokens);
        if (Search(target, steps)) return true;
        UndoTo(copies_.size() - 1);
        if (needed == all) break;
      }
    }
  }
  return false;
}

bool NodeFill::Fill(int64_t target, const std::vector<Copy>& earlier, int search_steps) {
  UndoTo(0);
  if (max_load() <= target) return true;
  if (total() > target * gpus()) return false;
  KeepEarlier(target, earlier);
  const bool kept = !copies_.empty();
  if (FillSets(target, all_ranks_)) return true;
  UndoTo(0);
  if (kept && FillSets(target, all_ranks_)) return true;
  UndoTo(0);
  int steps = search_steps;
  if (Search(target, steps)) return true;
  UndoTo(0);
  return false;
}

}  // namespace relibra

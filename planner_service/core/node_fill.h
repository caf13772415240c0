// Replicas inside one node for one (layer, micro-batch): bring every rank to a target load.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_NODE_FILL_H_
#define RELIBRA_PLANNER_SERVICE_CORE_NODE_FILL_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"

namespace relibra {

// Ranks are numbered within the node. Reused from micro-batch to micro-batch without allocation.
class NodeFill {
 public:
  // Tokens of an expert that a rank other than its home serves.
  struct Copy {
    int32_t expert = 0;
    int32_t from = 0;  // the home
    int32_t to = 0;
    int64_t tokens = 0;
  };

  // An expert's tokens at its home.
  struct Item {
    int32_t expert = 0;
    int64_t tokens = 0;
  };

  explicit NodeFill(int gpus) : load_(gpus), free_slots_(gpus), items_(gpus), all_ranks_(gpus) {
    std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  }

  // Starts over: no load, `slots` free slots on every rank.
  void Clear(int slots);
  // Adds an expert at its home.
  void AddHome(int gpu, int32_t expert, int64_t tokens);
  // Adds load that cannot be given away (a bridge), and takes a slot for it.
  void AddFixed(int gpu, int64_t tokens);

  int64_t total() const;
  int64_t max_load() const;
  // The mean, rounded up: no target below it can be reached.
  int64_t least_target() const;

  // Makes copies until no rank is above `target`; copies of `earlier` (the micro-batch before) that
  // settle a rank are used first. On failure the copies are undone and false returned. Tries, in
  // this order, few copies (splitting the ranks into sets that need nothing from each other),
  // Walker's alias filling (at most G - 1 copies, even with one slot a rank), and a search of
  // `search_steps` steps.
  bool Fill(int64_t target, const std::vector<Copy>& earlier, int search_steps);

  const std::vector<Copy>& copies() const { return copies_; }

 private:
  enum class Choice { kBestFit, kAlias };

  int gpus() const { return static_cast<int>(load_.size()); }
  bool Holds(int gpu, int32_t expert) const;
  // Moves tokens of items_[from][item] to rank `to` as a new copy.
  void Ship(int from, int item, int to, int64_t tokens);
  // Takes back copies until `count` are left.
  void UndoTo(size_t count);
  void KeepEarlier(int64_t target, const std::vector<Copy>& earlier);
  // The item of `from` to ship `amount` tokens of to `to`: the smallest that covers it, else the
  // largest; -1 when none can go.
  int PickItem(int from, int to, int64_t amount) const;
  bool FillBy(Choice choice, int64_t target, absl::Span<const int> ranks);
  // Splits `ranks` into independent sets where loads allow, and fills each.
  bool FillSets(int64_t target, absl::Span<const int> ranks);
  bool Search(int64_t target, int& steps);

  std::vector<int64_t> load_;             // [G]
  std::vector<int32_t> free_slots_;       // [G]
  std::vector<std::vector<Item>> items_;  // [G], experts at home
  std::vector<Copy> copies_;
  std::vector<int> all_ranks_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_NODE_FILL_H_

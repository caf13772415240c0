#include "tests/worker_agent/random_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace relibra::agent {
namespace {

using Random = std::mt19937_64;

int Below(Random& random, int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }
bool Chance(Random& random, double p) {
  return std::uniform_real_distribution<double>(0, 1)(random) < p;
}

struct Slot {
  int expert;
  int rank;
  int slot;
  bool bridge;
};

// Draws a replica for a slot of a rank; expert -1 when none fits.
int DrawExpert(const GroupShape& shape, const std::vector<int32_t>& homes, int rank, bool bridge,
               const std::vector<Slot>& taken, Random& random) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const int e = Below(random, shape.experts);
    if (homes[e] == rank) continue;
    if ((shape.NodeOf(homes[e]) == shape.NodeOf(rank)) == bridge) continue;
    const bool twice = std::any_of(taken.begin(), taken.end(),
                                   [&](const Slot& s) { return s.expert == e && s.rank == rank; });
    if (!twice) return e;
  }
  return -1;
}

// Splits `tokens` over the instances at random.
std::vector<uint32_t> Deal(uint32_t tokens, size_t instances, Random& random) {
  std::vector<uint32_t> parts(instances, 0);
  for (uint32_t t = 0; t < tokens; ++t) ++parts[random() % instances];
  return parts;
}

void FillMicroBatch(const GroupShape& shape, const std::vector<int32_t>& homes,
                    const std::vector<std::vector<uint32_t>>& loads, std::vector<Slot> slots,
                    Random& random, v1::MicroBatchPlan& out) {
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
    return std::tie(a.expert, a.rank) < std::tie(b.expert, b.rank);
  });
  std::map<std::pair<int, int>, uint32_t> served;  // (expert, rank)
  for (auto first = slots.begin(); first != slots.end();) {
    const int expert = first->expert;
    std::vector<int> ranks = {homes[expert]};
    for (; first != slots.end() && first->expert == expert; ++first) ranks.push_back(first->rank);
    std::sort(ranks.begin(), ranks.end());
    for (int s = 0; s < shape.ranks(); ++s) {
      const std::vector<uint32_t> parts = Deal(loads[s][expert], ranks.size(), random);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (parts[i] == 0) continue;
        v1::Split& split = *out.add_splits();
        split.set_expert(expert);
        split.set_source_rank(s);
        split.set_rank(ranks[i]);
        split.set_tokens(parts[i]);
        served[{expert, ranks[i]}] += parts[i];
      }
    }
  }
  for (const Slot& s : slots) {
    v1::Replica& replica = *out.add_replicas();
    replica.set_expert(s.expert);
    replica.set_rank(s.rank);
    replica.set_slot(s.slot);
    replica.set_tokens(served[{s.expert, s.rank}]);
    replica.set_cross_node(s.bridge);
  }
}

std::vector<int32_t> MoveHomes(const std::vector<int32_t>& before, double share, Random& random) {
  std::vector<int32_t> homes = before;
  const int swaps = static_cast<int>(std::lround(share * static_cast<double>(homes.size()) / 2));
  for (int i = 0; i < swaps; ++i) {
    std::swap(homes[Below(random, static_cast<int>(homes.size()))],
              homes[Below(random, static_cast<int>(homes.size()))]);
  }
  return homes;
}

}  // namespace

v1::Plan RandomPlan(const GroupShape& shape, const Placement& previous,
                    const std::vector<std::vector<std::vector<std::vector<uint32_t>>>>& loads,
                    const RandomPlanOptions& options, Random& random) {
  v1::Plan plan;
  plan.set_step(options.step);
  plan.set_pass("update");
  plan.set_digest("digest of step " + std::to_string(options.step));
  plan.mutable_topology()->set_nodes(shape.nodes);
  plan.mutable_topology()->set_gpus_per_node(shape.gpus_per_node);
  plan.mutable_topology()->set_replica_slots(shape.replica_slots);
  const std::vector<std::vector<int32_t>> before = previous.HomeRanks();
  for (int l = 0; l < shape.layers(); ++l) {
    v1::LayerPlan& layer = *plan.add_layers();
    layer.set_layer(shape.layer_ids[l]);
    const std::vector<int32_t> homes = MoveHomes(before[l], options.move_share, random);
    for (const int32_t home : homes) layer.add_home_rank(home);

    std::vector<Slot> bridges;
    for (int i = 0; i < options.bridges && shape.nodes > 1 && shape.replica_slots > 0; ++i) {
      const int rank = Below(random, shape.ranks());
      const bool free = std::none_of(bridges.begin(), bridges.end(),
                                     [&](const Slot& s) { return s.rank == rank; });
      const int expert = DrawExpert(shape, homes, rank, /*bridge=*/true, bridges, random);
      if (free && expert >= 0) bridges.push_back({expert, rank, 0, true});
    }
    for (size_t m = 0; m < loads.size(); ++m) {
      std::vector<Slot> slots = bridges;
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        for (int slot = 0; slot < shape.replica_slots; ++slot) {
          const bool used = std::any_of(bridges.begin(), bridges.end(), [&](const Slot& s) {
            return s.rank == rank && s.slot == slot;
          });
          if (used || !Chance(random, options.replica_share)) continue;
          const int expert = DrawExpert(shape, homes, rank, /*bridge=*/false, slots, random);
          if (expert >= 0) slots.push_back({expert, rank, slot, false});
        }
      }
      v1::MicroBatchPlan& micro_batch = *layer.add_micro_batches();
      micro_batch.set_micro_batch(static_cast<uint32_t>(m));
      FillMicroBatch(shape, homes, loads[m][l], std::move(slots), random, micro_batch);
    }
  }
  return plan;
}

}  // namespace relibra::agent

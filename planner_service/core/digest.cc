#include "planner_service/core/digest.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace relibra {
namespace {

class Hash {
 public:
  void Add(uint64_t word) {
    for (uint64_t& lane : lanes_) {
      lane = Mix((lane ^ word) * 0x100000001b3);
      word = ~word;
    }
  }
  std::string Hex() const { return absl::StrFormat("%016x%016x", lanes_[0], lanes_[1]); }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  uint64_t lanes_[2] = {0xcbf29ce484222325, 0x9e3779b97f4a7c15};
};

}  // namespace

std::string DigestOf(const Plan& plan) {
  Hash hash;
  hash.Add(plan.topology.nodes);
  hash.Add(plan.topology.gpus_per_node);
  hash.Add(plan.topology.replica_slots);
  hash.Add(plan.layers.size());
  for (const LayerPlan& layer : plan.layers) {
    hash.Add(layer.home_rank.size());
    for (int32_t rank : layer.home_rank) hash.Add(rank);
    hash.Add(layer.moves.size());
    for (const Move& move : layer.moves) {
      hash.Add(move.expert);
      hash.Add(move.from_rank);
      hash.Add(move.to_rank);
    }
    hash.Add(layer.replicas.size());
    for (const std::vector<Replica>& replicas : layer.replicas) {
      hash.Add(replicas.size());
      for (const Replica& replica : replicas) {
        hash.Add(replica.expert);
        hash.Add(replica.rank);
        hash.Add(static_cast<uint64_t>(replica.slot) << 1 | (replica.cross_node ? 1 : 0));
        hash.Add(replica.tokens);
      }
    }
  }
  return hash.Hex();
}

}  // namespace relibra

#include "planner_service/core/split.h"

#include <algorithm>
#include <cstddef>

namespace relibra {
namespace {

// One replicated expert: its instances in ascending order of rank and what each still has to serve.
struct Instance {
  int32_t rank;
  uint32_t left;
};

// Serves sources [first, last) from the instances within ranks [first, last), in ascending order.
void ServeRange(int32_t expert, int first, int last, std::vector<Instance>& instances,
                std::vector<uint32_t>& waiting, std::vector<Split>& out) {
  auto instance = std::lower_bound(instances.begin(), instances.end(), first,
                                   [](const Instance& i, int rank) { return i.rank < rank; });
  for (int s = first; s < last; ++s) {
    while (waiting[s] > 0 && instance != instances.end() && instance->rank < last) {
      const uint32_t tokens = std::min(waiting[s], instance->left);
      if (tokens > 0) {
        out.push_back({expert, s, instance->rank, tokens});
        waiting[s] -= tokens;
        instance->left -= tokens;
      }
      if (instance->left == 0) ++instance;
    }
  }
}

}  // namespace

void SplitTokens(const Topology& topology, absl::Span<const uint32_t> loads,
                 absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas,
                 std::vector<Split>& out) {
  const int num_ranks = topology.num_ranks();
  const size_t num_experts = home_rank.size();
  out.clear();
  std::vector<Instance> instances;
  std::vector<uint32_t> waiting(num_ranks);
  for (size_t r = 0; r < replicas.size();) {
    const int32_t expert = replicas[r].expert;
    const size_t begin = out.size();
    uint64_t total = 0;
    for (int s = 0; s < num_ranks; ++s) {
      waiting[s] = loads[s * num_experts + expert];
      total += waiting[s];
    }
    instances.clear();
    uint64_t replicated = 0;
    for (; r < replicas.size() && replicas[r].expert == expert; ++r) {
      instances.push_back({replicas[r].rank, replicas[r].tokens});
      replicated += replicas[r].tokens;
    }
    instances.push_back({home_rank[expert], static_cast<uint32_t>(total - replicated)});
    std::sort(instances.begin(), instances.end(),
              [](const Instance& a, const Instance& b) { return a.rank < b.rank; });

    for (Instance& instance : instances) {
      const uint32_t tokens = std::min(waiting[instance.rank], instance.left);
      if (tokens == 0) continue;
      out.push_back({expert, instance.rank, instance.rank, tokens});
      waiting[instance.rank] -= tokens;
      instance.left -= tokens;
    }
    for (int node = 0; node < topology.nodes; ++node) {
      ServeRange(expert, node * topology.gpus_per_node, (node + 1) * topology.gpus_per_node,
                 instances, waiting, out);
    }
    ServeRange(expert, 0, num_ranks, instances, waiting, out);

    // The three passes may serve one (source, instance) pair twice: order the rows and merge them.
    std::sort(out.begin() + begin, out.end(), [](const Split& a, const Split& b) {
      return a.source_rank != b.source_rank ? a.source_rank < b.source_rank : a.rank < b.rank;
    });
    size_t kept = begin;
    for (size_t i = begin; i < out.size(); ++i) {
      if (kept > begin && out[kept - 1].source_rank == out[i].source_rank &&
          out[kept - 1].rank == out[i].rank) {
        out[kept - 1].tokens += out[i].tokens;
      } else {
        out[kept++] = out[i];
      }
    }
    out.resize(kept);
  }
}

}  // namespace relibra

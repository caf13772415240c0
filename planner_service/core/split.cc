#include "planner_service/core/split.h"

#include <algorithm>
#include <cstddef>

namespace relibra {
namespace {

struct Instance {
  int32_t rank;
  uint32_t left;  // what it still has to serve
};

// One replicated expert while its tokens are dealt out.
struct Deal {
  std::vector<Instance> instances;  // ascending by rank
  std::vector<uint32_t> waiting;    // [S], tokens not dealt yet
  std::vector<uint32_t> dealt;      // [S, instances]

  void Give(int source, size_t instance) {
    const uint32_t tokens = std::min(waiting[source], instances[instance].left);
    waiting[source] -= tokens;
    instances[instance].left -= tokens;
    dealt[source * instances.size() + instance] += tokens;
  }

  // Serves sources [first, last) from the instances on ranks [first, last), in ascending order.
  void GiveRange(int first, int last) {
    size_t i = 0;
    while (i < instances.size() && instances[i].rank < first) ++i;
    for (int s = first; s < last && i < instances.size() && instances[i].rank < last; ++s) {
      while (waiting[s] > 0 && i < instances.size() && instances[i].rank < last) {
        Give(s, i);
        if (instances[i].left == 0) ++i;
      }
    }
  }
};

}  // namespace

void SplitTokens(const Topology& topology, absl::Span<const uint32_t> loads,
                 absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas,
                 std::vector<Split>& out) {
  const int num_ranks = topology.num_ranks();
  const size_t num_experts = home_rank.size();
  out.clear();
  Deal deal;
  deal.waiting.resize(num_ranks);
  for (size_t r = 0; r < replicas.size();) {
    const int32_t expert = replicas[r].expert;
    uint64_t at_home = 0;
    for (int s = 0; s < num_ranks; ++s) {
      deal.waiting[s] = loads[s * num_experts + expert];
      at_home += deal.waiting[s];
    }
    deal.instances.clear();
    for (; r < replicas.size() && replicas[r].expert == expert; ++r) {
      deal.instances.push_back({replicas[r].rank, replicas[r].tokens});
      at_home -= replicas[r].tokens;
    }
    deal.instances.push_back({home_rank[expert], static_cast<uint32_t>(at_home)});
    std::sort(deal.instances.begin(), deal.instances.end(),
              [](const Instance& a, const Instance& b) { return a.rank < b.rank; });
    const size_t count = deal.instances.size();
    deal.dealt.assign(num_ranks * count, 0);

    for (size_t i = 0; i < count; ++i) deal.Give(deal.instances[i].rank, i);
    // Only nodes that have an instance can serve their own.
    for (size_t i = 0; i < count;) {
      const int first = topology.NodeOf(deal.instances[i].rank) * topology.gpus_per_node;
      const int last = first + topology.gpus_per_node;
      deal.GiveRange(first, last);
      while (i < count && deal.instances[i].rank < last) ++i;
    }
    deal.GiveRange(0, num_ranks);

    for (int s = 0; s < num_ranks; ++s) {
      for (size_t i = 0; i < count; ++i) {
        const uint32_t tokens = deal.dealt[s * count + i];
        if (tokens > 0) out.push_back({expert, s, deal.instances[i].rank, tokens});
      }
    }
  }
}

}  // namespace relibra

#include "planner_service/core/split_check.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

template <typename... Args>
absl::Status Violation(const Args&... args) {
  return absl::InternalError(absl::StrCat("splits violate their rules: ", args...));
}

// The rows of one expert and source rank against that rank's load; takes them off `left`, what
// remains of each instance's quota.
absl::Status CheckSourceRows(int expert, int source, int64_t load, absl::Span<const Split> rows,
                             absl::Span<const int32_t> instances, std::vector<int64_t>& left) {
  const std::string where = absl::StrCat("expert ", expert, ", source rank ", source);
  int64_t placed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string which = absl::StrCat(where, ", rank ", rows[i].rank);
    if (i > 0 && rows[i - 1].rank >= rows[i].rank) {
      return Violation(which, ": splits are not ascending by rank");
    }
    if (rows[i].tokens == 0) return Violation(which, ": a split of 0 tokens");
    const auto* at = std::find(instances.begin(), instances.end(), rows[i].rank);
    if (at == instances.end()) return Violation(which, ": no instance of the expert there");
    left[at - instances.begin()] -= rows[i].tokens;
    placed += rows[i].tokens;
  }
  if (placed != load) {
    return Violation(where, ": splits place ", placed, " tokens of a load of ", load);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSplits(const Topology& topology, absl::Span<const uint32_t> loads,
                         absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas,
                         absl::Span<const Split> splits) {
  const size_t experts = home_rank.size();
  const int sources = topology.num_ranks();
  std::vector<int32_t> instances;  // of the expert at hand, home first
  std::vector<int64_t> left;       // of each instance's quota
  size_t next = 0;                 // in splits
  for (size_t r = 0; r < replicas.size();) {
    const int expert = replicas[r].expert;
    instances.assign(1, home_rank[expert]);
    left.assign(1, 0);
    for (; r < replicas.size() && replicas[r].expert == expert; ++r) {
      instances.push_back(replicas[r].rank);
      left.push_back(replicas[r].tokens);
      left[0] -= replicas[r].tokens;
    }
    for (int s = 0; s < sources; ++s) left[0] += loads[s * experts + expert];
    for (int s = 0; s < sources; ++s) {
      const size_t begin = next;
      while (next < splits.size() && splits[next].expert == expert &&
             splits[next].source_rank == s) {
        ++next;
      }
      absl::Status status = CheckSourceRows(expert, s, loads[s * experts + expert],
                                            splits.subspan(begin, next - begin), instances, left);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < instances.size(); ++i) {
      if (left[i] != 0) {
        return Violation("expert ", expert, ", rank ", instances[i], ": splits miss its quota by ",
                         left[i], " tokens");
      }
    }
  }
  if (next != splits.size()) {
    return Violation("expert ", splits[next].expert, ", source rank ", splits[next].source_rank,
                     ", rank ", splits[next].rank,
                     ": a split of an expert without replicas, out of range or out of order");
  }
  return absl::OkStatus();
}

absl::Status CheckAllSplits(const Loads& loads, const Plan& plan,
                            absl::FunctionRef<absl::Span<const Split>(int, int)> splits_of) {
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerPlan& layer = plan.layers[l];
    for (size_t m = 0; m < layer.replicas.size(); ++m) {
      const int micro_batch = static_cast<int>(m);
      absl::Status status =
          CheckSplits(plan.topology, loads.At(micro_batch, static_cast<int>(l)), layer.home_rank,
                      layer.replicas[m], splits_of(static_cast<int>(l), micro_batch));
      if (!status.ok()) {
        return absl::InternalError(
            absl::StrCat("layer ", l, ", micro-batch ", m, ": ", status.message()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace relibra

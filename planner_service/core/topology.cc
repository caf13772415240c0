#include "planner_service/core/topology.h"

#include "absl/strings/str_cat.h"

namespace relibra {

absl::Status Validate(const Topology& topology, int num_experts) {
  constexpr int kMaxRanks = 65535;
  if (topology.nodes < 1 || topology.nodes > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("nodes: expected 1 to ", kMaxRanks, ", got ", topology.nodes));
  }
  if (topology.gpus_per_node < 1 || topology.gpus_per_node > kMaxRanks / topology.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpus_per_node: expected 1 to ", kMaxRanks / topology.nodes, " with ",
                     topology.nodes, " nodes, got ", topology.gpus_per_node));
  }
  if (topology.replica_slots < 0 || topology.replica_slots > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("replica_slots: expected 0 to ", kMaxRanks, ", got ", topology.replica_slots));
  }
  if (num_experts < 1 || num_experts > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_experts: expected 1 to ", kMaxRanks, ", got ", num_experts));
  }
  if (num_experts % topology.num_ranks() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_experts: ", num_experts,
                                                   " experts do not divide evenly over ",
                                                   topology.num_ranks(), " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace relibra

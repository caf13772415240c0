#include "worker_agent/group_shape.h"

#include "absl/strings/str_cat.h"

namespace relibra::agent {

absl::Status Validate(const GroupShape& shape) {
  const auto at_least = [](const char* field, int value, int least) -> absl::Status {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, ", expected at least ", least));
  };
  if (absl::Status s = at_least("nodes", shape.nodes, 1); !s.ok()) return s;
  if (absl::Status s = at_least("gpus_per_node", shape.gpus_per_node, 1); !s.ok()) return s;
  if (absl::Status s = at_least("replica_slots", shape.replica_slots, 0); !s.ok()) return s;
  if (absl::Status s = at_least("experts", shape.experts, 1); !s.ok()) return s;
  if (absl::Status s = at_least("number of layers", shape.layers(), 1); !s.ok()) return s;
  if (int64_t{1} * shape.nodes * shape.gpus_per_node > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("nodes x gpus_per_node is ", shape.nodes, " x ",
                                                   shape.gpus_per_node,
                                                   ", expected at most 65535 ranks"));
  }
  if (shape.experts % shape.ranks() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts is ", shape.experts, ", expected a multiple of the ", shape.ranks(), " ranks"));
  }
  for (int l = 1; l < shape.layers(); ++l) {
    if (shape.layer_ids[l] <= shape.layer_ids[l - 1]) {
      return absl::InvalidArgumentError(absl::StrCat("layer_ids[", l, "] is ", shape.layer_ids[l],
                                                     ", expected ascending numbers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace relibra::agent

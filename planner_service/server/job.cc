#include "planner_service/server/job.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace relibra::server {
namespace {

constexpr double kDefaultMaxMissingShare = 0.05;
constexpr uint32_t kMaxSize = 65535;  // of experts, ranks, slots, layer numbers
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxTopK = 64;
constexpr uint32_t kMaxGroups = 4096;

absl::Status Expected(absl::string_view field, absl::string_view expected, double got) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", least, " to ", most, ", got ", value));
}

absl::Status CheckAscending(absl::string_view field,
                            const google::protobuf::RepeatedField<uint32_t>& values) {
  for (int i = 1; i < values.size(); ++i) {
    if (values[i] <= values[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, "[", i, "]: expected more than ", values[i - 1], " (ascending), got ", values[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::Model& model) {
  if (model.moe_layer_ids().empty()) {
    return absl::InvalidArgumentError("model.moe_layer_ids: expected at least one layer");
  }
  absl::Status status =
      CheckRange("model.moe_layer_ids: number of layers",
                 static_cast<uint64_t>(model.moe_layer_ids_size()), 1, kMaxLayers);
  if (status.ok()) status = CheckAscending("model.moe_layer_ids", model.moe_layer_ids());
  if (status.ok()) {
    status = CheckRange("model.moe_layer_ids: last",
                        model.moe_layer_ids(model.moe_layer_ids_size() - 1), 0, kMaxSize);
  }
  if (status.ok()) status = CheckRange("model.num_experts", model.num_experts(), 1, kMaxSize);
  if (status.ok()) {
    status = CheckRange("model.top_k", model.top_k(), 1, std::min(model.num_experts(), kMaxTopK));
  }
  return status;
}

absl::Status CheckTopology(const v1::Topology& topology, uint32_t num_experts, Topology& out) {
  absl::Status status = CheckRange("topology.nodes", topology.nodes(), 1, kMaxSize);
  if (status.ok()) {
    status = CheckRange("topology.gpus_per_node", topology.gpus_per_node(), 1, kMaxSize);
  }
  if (status.ok()) {
    status = CheckRange("topology.replica_slots", topology.replica_slots(), 0, kMaxSize);
  }
  if (!status.ok()) return status;
  out = {.nodes = static_cast<int>(topology.nodes()),
         .gpus_per_node = static_cast<int>(topology.gpus_per_node()),
         .replica_slots = static_cast<int>(topology.replica_slots())};
  status = Validate(out, static_cast<int>(num_experts));
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("topology: ", status.message()));
}

absl::Status CheckLayerAxis(const v1::JobSpec& spec) {
  const v1::Model& model = spec.model();
  const uint32_t last = model.moe_layer_ids(model.moe_layer_ids_size() - 1);
  switch (spec.layer_axis()) {
    case v1::LAYER_AXIS_MOE_LAYERS:
      if (spec.num_hidden_layers() == 0) return absl::OkStatus();
      break;
    case v1::LAYER_AXIS_ALL_LAYERS:
      break;
    default:
      return Expected("layer_axis", "a known LayerAxis", spec.layer_axis());
  }
  absl::Status status = CheckRange("num_hidden_layers", spec.num_hidden_layers(), 1, kMaxLayers);
  if (!status.ok()) return status;
  if (last >= spec.num_hidden_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("model.moe_layer_ids: layer ", last,
                                                   " is not below num_hidden_layers ",
                                                   spec.num_hidden_layers()));
  }
  return absl::OkStatus();
}

absl::Status CheckIdType(const v1::JobSpec& spec) {
  const int64_t largest = LargestId(spec.id_type());
  if (largest < 0) return Expected("id_type", "a known IdType", spec.id_type());
  if (int64_t{spec.model().num_experts()} - 1 > largest) {
    return absl::InvalidArgumentError(
        absl::StrCat("id_type: ", v1::IdType_Name(spec.id_type()), " holds ids up to ", largest,
                     ", too small for model.num_experts ", spec.model().num_experts()));
  }
  return absl::OkStatus();
}

// One group's own fields; its layers as indices.
absl::StatusOr<EpGroup> MakeGroup(const v1::EpGroup& group, absl::string_view field,
                                  const v1::JobSpec& spec, int num_ranks) {
  absl::Status status = CheckName(absl::StrCat(field, ".name"), group.name());
  if (!status.ok()) return status;
  if (group.global_ranks_size() != num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".global_ranks: expected ", num_ranks,
                                                   " ranks (nodes x gpus_per_node)", ", got ",
                                                   group.global_ranks_size()));
  }
  status = CheckAscending(absl::StrCat(field, ".layer_ids"), group.layer_ids());
  if (status.ok()) {
    status = CheckRange(absl::StrCat(field, ".data_parallel_index"), group.data_parallel_index(), 0,
                        kMaxGroups - 1);
  }
  if (!status.ok()) return status;
  EpGroup made = {.name = group.name(),
                  .layers = {},
                  .data_parallel_index = static_cast<int>(group.data_parallel_index())};
  const auto& all = spec.model().moe_layer_ids();
  for (int i = 0; i < group.layer_ids_size(); ++i) {
    const auto found = std::lower_bound(all.begin(), all.end(), group.layer_ids(i));
    if (found == all.end() || *found != group.layer_ids(i)) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".layer_ids[", i, "]: layer ",
                                                     group.layer_ids(i),
                                                     " is not in model.moe_layer_ids"));
    }
    made.layers.push_back(static_cast<int>(found - all.begin()));
  }
  return made;
}

// What holds between groups: unlike names, no GPU in two groups, and every data-parallel index has
// each layer exactly once.
absl::Status CheckGroupsTogether(const v1::JobSpec& spec, const std::vector<EpGroup>& groups) {
  std::set<std::string> names;
  std::map<uint32_t, std::string> owner_of_rank;
  std::map<int, std::map<int, std::string>>
      owner_of_layer;  // data-parallel index -> layer -> group
  for (int g = 0; g < spec.ep_groups_size(); ++g) {
    const v1::EpGroup& group = spec.ep_groups(g);
    const std::string field = absl::StrCat("ep_groups[", g, "]");
    if (!names.insert(group.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".name: \"", group.name(), "\" is used twice"));
    }
    for (int r = 0; r < group.global_ranks_size(); ++r) {
      const auto [owner, added] = owner_of_rank.emplace(group.global_ranks(r), group.name());
      if (!added) {
        return absl::InvalidArgumentError(
            absl::StrCat(field, ".global_ranks[", r, "]: rank ", group.global_ranks(r),
                         " is already in group \"", owner->second, "\""));
      }
    }
    for (int layer : groups[g].layers) {
      const auto [owner, added] =
          owner_of_layer[groups[g].data_parallel_index].emplace(layer, group.name());
      if (!added) {
        return absl::InvalidArgumentError(
            absl::StrCat(field, ".layer_ids: layer ", spec.model().moe_layer_ids(layer),
                         " of data_parallel_index ", group.data_parallel_index(),
                         " is already in group \"", owner->second, "\""));
      }
    }
  }
  int expected_index = 0;
  for (const auto& [index, layers] : owner_of_layer) {
    if (index != expected_index++) {
      return absl::InvalidArgumentError(
          absl::StrCat("ep_groups: no group has data_parallel_index ", expected_index - 1));
    }
    for (int layer = 0; layer < spec.model().moe_layer_ids_size(); ++layer) {
      if (layers.count(layer) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("ep_groups: no group of data_parallel_index ", index, " has layer ",
                         spec.model().moe_layer_ids(layer)));
      }
    }
  }
  return absl::OkStatus();
}

// Writes the meaning of absent groups, ranks and layers out. Ranks are left absent where several
// groups could not all have them.
void FillGroups(v1::JobSpec& spec, int num_ranks) {
  if (spec.ep_groups().empty()) spec.add_ep_groups()->set_name("ep0");
  for (v1::EpGroup& group : *spec.mutable_ep_groups()) {
    if (group.global_ranks().empty() && spec.ep_groups_size() == 1) {
      for (int r = 0; r < num_ranks; ++r) group.add_global_ranks(r);
    }
    if (group.layer_ids().empty()) *group.mutable_layer_ids() = spec.model().moe_layer_ids();
  }
}

absl::Status CheckCost(absl::string_view field, double cost) {
  if (std::isfinite(cost) && cost >= 0) return absl::OkStatus();
  return Expected(field, "a number of tokens of at least 0", cost);
}

}  // namespace

absl::Status CheckName(absl::string_view field, absl::string_view name) {
  const bool good =
      !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  if (good) return absl::OkStatus();
  if (name.size() > 63) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected 1 to 63 of [a-z0-9-], got ", name.size(), " bytes"));
  }
  // The name may hold bytes that would spoil a log line.
  std::string shown;
  for (char c : name) shown += (c >= ' ' && c <= '~') ? c : '?';
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected 1 to 63 of [a-z0-9-], got \"", shown, "\""));
}

absl::StatusOr<PlanOptions> MakePlanOptions(absl::string_view field,
                                            const v1::PlanOptions& options) {
  PlanOptions made;
  switch (options.effort()) {
    case v1::EFFORT_UNSPECIFIED:
    case v1::EFFORT_FAST:
      made.effort = Effort::kFast;
      break;
    case v1::EFFORT_THOROUGH:
      made.effort = Effort::kThorough;
      break;
    default:
      return Expected(absl::StrCat(field, ".effort"), "a known Effort", options.effort());
  }
  absl::Status status = CheckCost(absl::StrCat(field, ".move_cost"), options.move_cost());
  if (status.ok()) status = CheckCost(absl::StrCat(field, ".replica_cost"), options.replica_cost());
  if (!status.ok()) return status;
  if (options.has_bridges()) {
    status = CheckRange(absl::StrCat(field, ".bridges"), options.bridges(), 0, kMaxSize);
    if (!status.ok()) return status;
    made.bridges = static_cast<int>(options.bridges());
  }
  if (options.has_max_moves()) {
    made.max_moves = static_cast<int64_t>(
        std::min<uint64_t>(options.max_moves(), std::numeric_limits<int64_t>::max()));
  }
  made.move_cost = options.move_cost();
  made.replica_cost = options.replica_cost();
  made.seed = options.seed();
  return made;
}

absl::StatusOr<int> Job::GroupIndex(absl::string_view name) const {
  if (name.empty()) {
    if (groups.size() == 1) return 0;
    return absl::InvalidArgumentError(absl::StrCat("ep_group: expected one of the ", groups.size(),
                                                   " groups of job \"", spec.job(),
                                                   "\", got none"));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].name == name) return static_cast<int>(g);
  }
  absl::Status well_formed = CheckName("ep_group", name);
  if (!well_formed.ok()) return well_formed;
  return absl::NotFoundError(
      absl::StrCat("ep_group: job \"", spec.job(), "\" has no group \"", name, "\""));
}

absl::StatusOr<std::shared_ptr<const Job>> MakeJob(v1::JobSpec spec) {
  auto job = std::make_shared<Job>();
  absl::Status status = CheckName("job", spec.job());
  if (status.ok()) status = CheckModel(spec.model());
  if (status.ok()) {
    status = CheckTopology(spec.topology(), spec.model().num_experts(), job->topology);
  }
  if (spec.layer_axis() == v1::LAYER_AXIS_UNSPECIFIED) {
    spec.set_layer_axis(v1::LAYER_AXIS_MOE_LAYERS);
  }
  if (status.ok()) status = CheckLayerAxis(spec);
  if (status.ok()) {
    status = CheckRange("ep_groups: number of groups", static_cast<uint64_t>(spec.ep_groups_size()),
                        0, kMaxGroups);
  }
  if (status.ok()) status = CheckIdType(spec);
  if (status.ok() && !(spec.max_missing_share() >= 0 && spec.max_missing_share() <= 1)) {
    status = Expected("max_missing_share", "a share of 0 to 1", spec.max_missing_share());
  }
  if (status.ok()) status = MakePlanOptions("plan_options", spec.plan_options()).status();
  if (!status.ok()) return status;

  if (spec.max_missing_share() == 0) spec.set_max_missing_share(kDefaultMaxMissingShare);
  FillGroups(spec, job->topology.num_ranks());
  for (int g = 0; g < spec.ep_groups_size(); ++g) {
    absl::StatusOr<EpGroup> group = MakeGroup(spec.ep_groups(g), absl::StrCat("ep_groups[", g, "]"),
                                              spec, job->topology.num_ranks());
    if (!group.ok()) return group.status();
    job->groups.push_back(*std::move(group));
  }
  status = CheckGroupsTogether(spec, job->groups);
  if (!status.ok()) return status;

  const bool all_layers = spec.layer_axis() == v1::LAYER_AXIS_ALL_LAYERS;
  const int num_layers = spec.model().moe_layer_ids_size();
  for (int l = 0; l < num_layers; ++l) {
    job->layer_rows.push_back(all_layers ? static_cast<int>(spec.model().moe_layer_ids(l)) : l);
  }
  job->axis_length = all_layers ? static_cast<int>(spec.num_hidden_layers()) : num_layers;
  job->spec = std::move(spec);
  return job;
}

int64_t LargestId(v1::IdType type) {
  switch (type) {
    case v1::ID_TYPE_UNSPECIFIED:
    case v1::ID_TYPE_INT64:
      return std::numeric_limits<int64_t>::max();
    case v1::ID_TYPE_UINT8:
      return std::numeric_limits<uint8_t>::max();
    case v1::ID_TYPE_INT8:
      return std::numeric_limits<int8_t>::max();
    case v1::ID_TYPE_INT16:
      return std::numeric_limits<int16_t>::max();
    case v1::ID_TYPE_UINT16:
      return std::numeric_limits<uint16_t>::max();
    case v1::ID_TYPE_INT32:
      return std::numeric_limits<int32_t>::max();
    default:
      return -1;
  }
}

std::string FirstDifference(const v1::JobSpec& known, const v1::JobSpec& asked) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(known, asked)) return "";
  // Lines read "modified: model.num_experts: 64 -> 128".
  absl::string_view first = *absl::StrSplit(report, '\n').begin();
  absl::ConsumePrefix(&first, "modified: ");
  return std::string(first);
}

}  // namespace relibra::server

#include "planner_service/trace/slot_map.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/json_text.h"

namespace relibra {
namespace {

using nlohmann::json;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The value of an object's only field.
absl::StatusOr<json> OnlyField(absl::string_view text, absl::string_view field,
                               absl::string_view name) {
  absl::StatusOr<json> object = ParseJsonObject(text, name);
  if (!object.ok()) return object.status();
  if (absl::Status status = CheckKnownFields(*object, {field}, name); !status.ok()) return status;
  if (object->empty()) return Invalid(name, ": expected a field \"", field, "\"");
  return std::move((*object)[std::string(field)]);
}

template <typename T>
absl::Status CheckRectangle(const std::vector<std::vector<T>>& rows, absl::string_view where) {
  if (rows.empty() || rows.front().empty()) {
    return Invalid(where, ": expected at least one layer with at least one entry");
  }
  for (size_t l = 1; l < rows.size(); ++l) {
    if (rows[l].size() != rows.front().size()) {
      return Invalid(where, "[", l, "]: expected ", rows.front().size(), " entries as in [0], got ",
                     rows[l].size());
    }
  }
  return absl::OkStatus();
}

// An integer field of an object.
absl::StatusOr<uint32_t> NumberOf(const json& object, const char* field, absl::string_view where) {
  if (!object.is_object() || !object.contains(field)) {
    return Invalid(where, ": expected an object with a field \"", field, "\"");
  }
  const json& value = object[field];
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    return Invalid(where, ".", field, ": expected an integer from 0, got ", Shown(value));
  }
  return value.get<uint32_t>();
}

absl::StatusOr<const json*> ListOf(const json& object, const char* field, absl::string_view where) {
  if (!object.is_object() || !object.contains(field) || !object[field].is_array() ||
      object[field].empty()) {
    return Invalid(where, ": expected a field \"", field, "\", an array of at least 1");
  }
  return &object[field];
}

// One layer of Ascend's form: the slots of all devices in a row.
absl::Status AppendAscendLayer(const json& layer, const std::string& where, SlotMap& map) {
  absl::StatusOr<uint32_t> id = NumberOf(layer, "layer_id", where);
  if (!id.ok()) return id.status();
  if (!map.layer_ids.empty() && *id <= map.layer_ids.back()) {
    return Invalid(where, ".layer_id: expected more than ", map.layer_ids.back(),
                   " (ascending), got ", *id);
  }
  map.layer_ids.push_back(*id);
  absl::StatusOr<uint32_t> count = NumberOf(layer, "device_count", where);
  if (!count.ok()) return count.status();
  absl::StatusOr<const json*> devices = ListOf(layer, "device_list", where);
  if (!devices.ok()) return devices.status();
  if ((*devices)->size() != *count) {
    return Invalid(where, ".device_list: expected device_count = ", *count, " devices, got ",
                   (*devices)->size());
  }
  std::vector<int32_t>& row = map.rows.emplace_back();
  size_t slots = 0;
  for (size_t d = 0; d < (*devices)->size(); ++d) {
    const std::string device = absl::StrCat(where, ".device_list[", d, "]");
    absl::StatusOr<uint32_t> device_id = NumberOf((**devices)[d], "device_id", device);
    if (!device_id.ok()) return device_id.status();
    if (*device_id != d) {
      return Invalid(device, ".device_id: expected ", d, ", got ", *device_id);
    }
    if (!(**devices)[d].contains("device_expert")) {
      return Invalid(device, ": expected a field \"device_expert\"");
    }
    absl::StatusOr<std::vector<int32_t>> experts = IntegerList<int32_t>(
        (**devices)[d]["device_expert"], absl::StrCat(device, ".device_expert"), 0);
    if (!experts.ok()) return experts.status();
    if (d == 0) slots = experts->size();
    if (experts->size() != slots) {
      return Invalid(device, ".device_expert: expected ", slots, " experts as on device 0, got ",
                     experts->size());
    }
    row.insert(row.end(), experts->begin(), experts->end());
  }
  return absl::OkStatus();
}

// Finds homes for the experts of one layer: a flow from experts to the ranks that hold them, so
// many to a rank, by augmenting paths.
class HomeFinder {
 public:
  // holders: [E] ranks, ascending.
  HomeFinder(std::vector<std::vector<int32_t>> holders, int num_ranks, int per_rank)
      : holders_(std::move(holders)),
        per_rank_(per_rank),
        home_(holders_.size(), -1),
        residents_(num_ranks) {}

  // The first expert for which there is no place, or -1.
  int Run() {
    for (int e = 0; e < static_cast<int>(holders_.size()); ++e) {
      std::vector<bool> seen(residents_.size());
      if (!Settle(e, seen)) return e;
    }
    return -1;
  }

  const std::vector<int32_t>& home() const { return home_; }

 private:
  bool Settle(int e, std::vector<bool>& seen) {
    for (int32_t rank : holders_[e]) {
      if (seen[rank]) continue;
      seen[rank] = true;
      std::vector<int>& residents = residents_[rank];
      if (static_cast<int>(residents.size()) < per_rank_) {
        residents.push_back(e);
        home_[e] = rank;
        return true;
      }
      for (int& resident : residents) {
        if (!Settle(resident, seen)) continue;
        resident = e;
        home_[e] = rank;
        return true;
      }
    }
    return false;
  }

  const std::vector<std::vector<int32_t>> holders_;
  const int per_rank_;
  std::vector<int32_t> home_;
  std::vector<std::vector<int>> residents_;
};

}  // namespace

absl::StatusOr<SlotMap> ParseSglangSlots(absl::string_view text, absl::string_view name) {
  absl::StatusOr<json> value = OnlyField(text, "physical_to_logical_map", name);
  if (!value.ok()) return value.status();
  const std::string where = absl::StrCat(name, ": physical_to_logical_map");
  absl::StatusOr<std::vector<std::vector<int32_t>>> rows = IntegerMatrix<int32_t>(*value, where, 0);
  if (!rows.ok()) return rows.status();
  if (absl::Status status = CheckRectangle(*rows, where); !status.ok()) return status;
  SlotMap map;
  for (size_t l = 0; l < rows->size(); ++l) map.layer_ids.push_back(static_cast<uint32_t>(l));
  map.rows = *std::move(rows);
  return map;
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> ParseSglangCounts(absl::string_view text,
                                                                     absl::string_view name) {
  absl::StatusOr<json> value = OnlyField(text, "logical_count", name);
  if (!value.ok()) return value.status();
  const std::string where = absl::StrCat(name, ": logical_count");
  const bool several = value->is_array() && !value->empty() && value->front().is_array() &&
                       !value->front().empty() && value->front().front().is_array();
  if (!several) value = json::array({*value});
  std::vector<std::vector<uint32_t>> sums;
  for (size_t step = 0; step < value->size(); ++step) {
    const std::string at = several ? absl::StrCat(where, "[", step, "]") : where;
    absl::StatusOr<std::vector<std::vector<uint32_t>>> counts =
        IntegerMatrix<uint32_t>((*value)[step], at, 0);
    if (!counts.ok()) return counts.status();
    if (absl::Status status = CheckRectangle(*counts, at); !status.ok()) return status;
    if (step == 0) sums.assign(counts->size(), std::vector<uint32_t>(counts->front().size()));
    if (counts->size() != sums.size() || counts->front().size() != sums.front().size()) {
      return Invalid(at, ": expected [", sums.size(), ", ", sums.front().size(),
                     "] counts as in step 0");
    }
    for (size_t l = 0; l < sums.size(); ++l) {
      for (size_t e = 0; e < sums[l].size(); ++e) {
        sums[l][e] += (*counts)[l][e];
        if (sums[l][e] < (*counts)[l][e]) {
          return Invalid(at, "[", l, "][", e, "]: the sum over steps does not fit into 32 bits");
        }
      }
    }
  }
  return sums;
}

absl::StatusOr<SlotMap> ParseAscendSlots(absl::string_view text, absl::string_view name) {
  absl::StatusOr<json> object = ParseJsonObject(text, name);
  if (!object.ok()) return object.status();
  absl::StatusOr<uint32_t> count = NumberOf(*object, "moe_layer_count", name);
  if (!count.ok()) return count.status();
  absl::StatusOr<const json*> layers = ListOf(*object, "layer_list", name);
  if (!layers.ok()) return layers.status();
  if ((*layers)->size() != *count) {
    return Invalid(name, ": layer_list: expected moe_layer_count = ", *count, " layers, got ",
                   (*layers)->size());
  }
  SlotMap map;
  for (size_t l = 0; l < (*layers)->size(); ++l) {
    absl::Status status =
        AppendAscendLayer((**layers)[l], absl::StrCat(name, ": layer_list[", l, "]"), map);
    if (!status.ok()) return status;
  }
  absl::Status status = CheckRectangle(map.rows, absl::StrCat(name, ": layer_list"));
  if (!status.ok()) return status;
  return map;
}

std::string SglangJson(const SlotMap& map) {
  std::string out = "{\"physical_to_logical_map\": [";
  for (size_t l = 0; l < map.rows.size(); ++l) {
    absl::StrAppend(&out, l == 0 ? "\n " : ",\n ", "[", absl::StrJoin(map.rows[l], ","), "]");
  }
  return out + "]}\n";
}

std::string TensorRtYaml(const SlotMap& map) {
  std::string out = absl::StrCat("num_slots: ", map.rows.empty() ? 0 : map.rows.front().size(),
                                 "\ninitial_global_assignments:\n");
  for (size_t l = 0; l < map.rows.size(); ++l) {
    absl::StrAppend(&out, "  ", map.layer_ids[l], ": [", absl::StrJoin(map.rows[l], ", "), "]\n");
  }
  return out + "layer_updates_per_iter: 0\n";
}

std::string AscendJson(const SlotMap& map, int num_ranks) {
  json layers = json::array();
  for (size_t l = 0; l < map.rows.size(); ++l) {
    json devices = json::array();
    const size_t slots = map.rows[l].size() / num_ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto first = map.rows[l].begin() + static_cast<ptrdiff_t>(slots) * rank;
      devices.push_back(
          {{"device_id", rank},
           {"device_expert", std::vector<int32_t>(first, first + static_cast<ptrdiff_t>(slots))}});
    }
    layers.push_back({{"layer_id", map.layer_ids[l]},
                      {"device_count", num_ranks},
                      {"device_list", std::move(devices)}});
  }
  const json object = {{"moe_layer_count", map.rows.size()}, {"layer_list", std::move(layers)}};
  return object.dump() + "\n";
}

absl::StatusOr<Placement> HomesOfSlots(const SlotMap& map, const Topology& topology,
                                       int num_experts, absl::string_view name) {
  if (absl::Status status = Validate(topology, num_experts); !status.ok()) return status;
  const int num_ranks = topology.num_ranks();
  Placement homes;
  for (size_t l = 0; l < map.rows.size(); ++l) {
    const std::string where = absl::StrCat(name, ": layer ", map.layer_ids[l]);
    const std::vector<int32_t>& row = map.rows[l];
    if (row.size() % num_ranks != 0) {
      return Invalid(where, ": expected slots that divide over ", num_ranks, " ranks, got ",
                     row.size());
    }
    const size_t slots = row.size() / num_ranks;
    std::vector<std::vector<int32_t>> holders(num_experts);
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] < 0 || row[i] >= num_experts) {
        return Invalid(where, ", slot ", i, ": expected an expert from 0 to ", num_experts - 1,
                       ", got ", row[i]);
      }
      std::vector<int32_t>& of_expert = holders[row[i]];
      const auto rank = static_cast<int32_t>(i / slots);
      if (of_expert.empty() || of_expert.back() != rank) of_expert.push_back(rank);
    }
    for (int e = 0; e < num_experts; ++e) {
      if (holders[e].empty()) return Invalid(where, ": expert ", e, " is in no slot");
    }
    HomeFinder finder(std::move(holders), num_ranks, num_experts / num_ranks);
    if (const int left = finder.Run(); left >= 0) {
      return Invalid(where, ": no rank is left to be home to expert ", left,
                     ": every rank must be ", "home to ", num_experts / num_ranks,
                     " experts that it holds");
    }
    homes.push_back(finder.home());
  }
  return homes;
}

SlotMap SlotsOfPlan(const Plan& plan, absl::Span<const uint32_t> layer_ids, int micro_batch) {
  SlotMap map{.layer_ids = {layer_ids.begin(), layer_ids.end()}};
  const int num_ranks = plan.topology.num_ranks();
  const int extra = micro_batch < 0 ? 0 : plan.topology.replica_slots;
  for (const LayerPlan& layer : plan.layers) {
    const int own = static_cast<int>(layer.home_rank.size()) / num_ranks;
    const int slots = own + extra;
    std::vector<int32_t>& row = map.rows.emplace_back(size_t{1} * num_ranks * slots, -1);
    std::vector<int> used(num_ranks);
    for (size_t e = 0; e < layer.home_rank.size(); ++e) {
      const int rank = layer.home_rank[e];
      row[rank * slots + used[rank]++] = static_cast<int32_t>(e);
    }
    if (micro_batch >= 0) {
      for (const Replica& replica : layer.replicas[micro_batch]) {
        row[replica.rank * slots + own + replica.slot] = replica.expert;
      }
    }
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] < 0) row[i] = row[i / slots * slots];
    }
  }
  return map;
}

}  // namespace relibra

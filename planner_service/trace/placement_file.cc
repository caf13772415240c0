#include "planner_service/trace/placement_file.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/file_bytes.h"
#include "planner_service/trace/json_text.h"
#include "planner_service/trace/plan_file.h"
#include "planner_service/trace/plan_message.h"

namespace relibra {
namespace {

using nlohmann::json;

// What a file says; layer_ids is empty where it does not number its layers.
struct PlacementText {
  Placement homes;
  std::vector<uint32_t> layer_ids;
};

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::StatusOr<PlacementText> PlainForm(absl::string_view bytes, absl::string_view name) {
  absl::StatusOr<json> parsed = ParseJsonObject(bytes, name);
  if (!parsed.ok()) return parsed.status();
  const json& object = *parsed;
  if (!object.contains("homeRank")) {
    return Invalid(name, ": expected a plan (field \"layers\") or a placement (\"homeRank\")");
  }
  if (absl::Status status = CheckKnownFields(object, {"homeRank", "layerIds"}, name);
      !status.ok()) {
    return status;
  }
  PlacementText text;
  absl::StatusOr<Placement> homes =
      IntegerMatrix<int32_t>(object["homeRank"], absl::StrCat(name, ": homeRank"), 0);
  if (!homes.ok()) return homes.status();
  text.homes = *std::move(homes);
  if (object.contains("layerIds")) {
    absl::StatusOr<std::vector<uint32_t>> ids =
        IntegerList<uint32_t>(object["layerIds"], absl::StrCat(name, ": layerIds"), 0);
    if (!ids.ok()) return ids.status();
    if (ids->size() != text.homes.size()) {
      return Invalid(name, ": layerIds: expected ", text.homes.size(),
                     " as homeRank has layers, got ", ids->size());
    }
    text.layer_ids = *std::move(ids);
  }
  return text;
}

absl::StatusOr<PlacementText> OfPlan(absl::string_view bytes, absl::string_view name,
                                     const Topology& topology) {
  absl::StatusOr<v1::Plan> message = ParsePlan(bytes, name);
  if (!message.ok()) return message.status();
  absl::StatusOr<Plan> plan = PlanFromMessage(*message, name);
  if (!plan.ok()) return plan.status();
  if (plan->topology.nodes != topology.nodes ||
      plan->topology.gpus_per_node != topology.gpus_per_node) {
    return Invalid(name, ": topology: expected ", topology.nodes, " nodes x ",
                   topology.gpus_per_node, " GPUs, got ", plan->topology.nodes, " x ",
                   plan->topology.gpus_per_node);
  }
  PlacementText text;
  for (size_t l = 0; l < plan->layers.size(); ++l) {
    text.homes.push_back(std::move(plan->layers[l].home_rank));
    text.layer_ids.push_back(message->layers(static_cast<int>(l)).layer());
  }
  return text;
}

absl::Status CheckHomes(const Placement& homes, absl::string_view name, const Topology& topology,
                        int num_experts) {
  const int per_rank = num_experts / topology.num_ranks();
  for (size_t l = 0; l < homes.size(); ++l) {
    if (homes[l].size() != static_cast<size_t>(num_experts)) {
      return Invalid(name, ": homeRank[", l, "]: expected ", num_experts, " experts, got ",
                     homes[l].size());
    }
    std::vector<int> count(topology.num_ranks());
    for (int e = 0; e < num_experts; ++e) {
      const int rank = homes[l][e];
      if (rank < 0 || rank >= topology.num_ranks()) {
        return Invalid(name, ": homeRank[", l, "][", e, "]: expected 0 to ",
                       topology.num_ranks() - 1, ", got ", rank);
      }
      ++count[rank];
    }
    for (int rank = 0; rank < topology.num_ranks(); ++rank) {
      if (count[rank] != per_rank) {
        return Invalid(name, ": homeRank[", l, "]: expected ", per_rank,
                       " experts on every rank, got ", count[rank], " on rank ", rank);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> ParsePlacement(absl::string_view bytes, absl::string_view name,
                                         const Topology& topology,
                                         absl::Span<const uint32_t> layer_ids, int num_experts) {
  if (absl::Status status = Validate(topology, num_experts); !status.ok()) return status;
  absl::StatusOr<PlacementText> text = absl::InvalidArgumentError("");
  // Every plan in JSON has this field and no plain form has, so no large plan is parsed twice.
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{");
  if (is_json && !absl::StrContains(bytes, "\"layers\"")) {
    text = PlainForm(bytes, name);
  } else {
    text = OfPlan(bytes, name, topology);
  }
  if (!text.ok()) return text.status();
  if (text->homes.size() != layer_ids.size()) {
    return Invalid(name, ": homeRank: expected ", layer_ids.size(), " layers, got ",
                   text->homes.size());
  }
  if (!text->layer_ids.empty() && text->layer_ids != layer_ids) {
    return Invalid(name, ": layers: expected numbers ", absl::StrJoin(layer_ids, ","), ", got ",
                   absl::StrJoin(text->layer_ids, ","));
  }
  if (absl::Status status = CheckHomes(text->homes, name, topology, num_experts); !status.ok()) {
    return status;
  }
  return std::move(text->homes);
}

absl::StatusOr<Placement> ReadPlacementFile(const std::string& path, const Topology& topology,
                                            absl::Span<const uint32_t> layer_ids, int num_experts) {
  absl::StatusOr<std::string> bytes = ReadFileBytes(path);
  if (!bytes.ok()) return bytes.status();
  return ParsePlacement(*bytes, path, topology, layer_ids, num_experts);
}

std::string PlacementToJson(const Placement& placement, absl::Span<const uint32_t> layer_ids) {
  std::string out = "{\"homeRank\": [";
  for (size_t l = 0; l < placement.size(); ++l) {
    absl::StrAppend(&out, l == 0 ? "\n" : ",\n", "  [", absl::StrJoin(placement[l], ","), "]");
  }
  absl::StrAppend(&out, "],\n \"layerIds\": [", absl::StrJoin(layer_ids, ","), "]}\n");
  return out;
}

}  // namespace relibra

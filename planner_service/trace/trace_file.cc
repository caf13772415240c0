#include "planner_service/trace/trace_file.h"

#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/file_bytes.h"
#include "planner_service/trace/json_text.h"
#include "planner_service/trace/npz.h"
#include "planner_service/trace/npz_trace.h"

namespace relibra {
namespace {

using nlohmann::json;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Appends the counts of nested arrays: value is [sizes[0]][sizes[1]]…; a size of 0 is not known yet
// and is set by the first array met.
absl::Status AppendCounts(const json& value, const std::string& where, absl::Span<size_t> sizes,
                          std::vector<uint32_t>& counts) {
  if (!value.is_array()) {
    return Invalid(where, ": expected an array, got ", KindOf(value));
  }
  if (value.empty()) return Invalid(where, ": expected at least 1 entry, got 0");
  if (sizes[0] == 0) sizes[0] = value.size();
  if (value.size() != sizes[0]) {
    return Invalid(where, ": expected ", sizes[0], sizes.size() == 1 ? " counts" : " rows",
                   " as elsewhere, got ", value.size());
  }
  if (sizes.size() == 1) {
    absl::StatusOr<std::vector<uint32_t>> row = IntegerList<uint32_t>(value, where, 0);
    if (!row.ok()) return row.status();
    counts.insert(counts.end(), row->begin(), row->end());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < value.size(); ++i) {
    absl::Status status =
        AppendCounts(value[i], absl::StrCat(where, "[", i, "]"), sizes.subspan(1), counts);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> LayerIdsOf(const json& object, size_t num_layers,
                                                 absl::string_view name) {
  const std::string where = absl::StrCat(name, ": layer_ids");
  if (!object.contains("layer_ids")) {
    std::vector<uint32_t> ids(num_layers);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  absl::StatusOr<std::vector<uint32_t>> ids = IntegerList<uint32_t>(object["layer_ids"], where, 0);
  if (!ids.ok()) return ids.status();
  if (ids->size() != num_layers) {
    return Invalid(where, ": expected ", num_layers, " as loads has layers, got ", ids->size());
  }
  for (size_t l = 1; l < ids->size(); ++l) {
    if ((*ids)[l] <= (*ids)[l - 1]) {
      return Invalid(where, "[", l, "]: expected more than ", (*ids)[l - 1], " (ascending), got ",
                     (*ids)[l]);
    }
  }
  return ids;
}

absl::StatusOr<Trace> ParseJsonCounts(absl::string_view text, absl::string_view name) {
  absl::StatusOr<json> object = ParseJsonObject(text, name);
  if (!object.ok()) return object.status();
  for (const char* field : {"num_experts", "loads"}) {
    if (!object->contains(field)) {
      return Invalid(name, ": expected a field \"", field, "\", but there is none");
    }
  }
  constexpr uint64_t kMostExperts = 65535;
  const json& num_experts = (*object)["num_experts"];
  if (!num_experts.is_number_unsigned() || num_experts.get<uint64_t>() < 1 ||
      num_experts.get<uint64_t>() > kMostExperts) {
    return Invalid(name, ": num_experts: expected an integer from 1 to ", kMostExperts, ", got ",
                   Shown(num_experts));
  }
  size_t sizes[4] = {0, 0, 0, num_experts.get<size_t>()};
  std::vector<uint32_t> counts;
  absl::Status status = AppendCounts((*object)["loads"], absl::StrCat(name, ": loads"),
                                     absl::MakeSpan(sizes), counts);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<uint32_t>> layer_ids = LayerIdsOf(*object, sizes[1], name);
  if (!layer_ids.ok()) return layer_ids.status();
  absl::StatusOr<Loads> loads = Loads::FromCounts({.micro_batches = static_cast<int>(sizes[0]),
                                                   .layers = static_cast<int>(sizes[1]),
                                                   .sources = static_cast<int>(sizes[2]),
                                                   .experts = static_cast<int>(sizes[3])},
                                                  std::move(counts));
  if (loads.ok()) status = loads->CheckSums();
  if (!loads.ok()) status = loads.status();
  if (!status.ok()) return Invalid(name, ": loads: ", status.message());
  return Trace{.routing =
                   CountTrace{.loads = *std::move(loads), .layer_ids = *std::move(layer_ids)}};
}

std::string JsonOfCounts(const CountTrace& trace) {
  const LoadShape& shape = trace.loads.shape();
  std::string out = absl::StrCat("{\"num_experts\": ", shape.experts, ", \"layer_ids\": [",
                                 absl::StrJoin(trace.layer_ids, ","), "],\n \"loads\": [");
  for (int m = 0; m < shape.micro_batches; ++m) {
    absl::StrAppend(&out, m == 0 ? "\n  [" : ",\n  [");
    for (int l = 0; l < shape.layers; ++l) {
      absl::StrAppend(&out, l == 0 ? "[" : ",\n   [");
      for (int s = 0; s < shape.sources; ++s) {
        const absl::Span<const uint32_t> row =
            trace.loads.At(m, l).subspan(size_t{1} * s * shape.experts, shape.experts);
        absl::StrAppend(&out, s == 0 ? "[" : ",[", absl::StrJoin(row, ","), "]");
      }
      out += ']';
    }
    out += ']';
  }
  out += "]}\n";
  return out;
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(absl::string_view bytes, absl::string_view name,
                                 const TraceReadOptions& options) {
  if (absl::StartsWith(bytes, "PK")) {
    absl::StatusOr<NpzArchive> archive = ReadNpz(bytes, name, options.max_bytes);
    if (!archive.ok()) return archive.status();
    return TraceOfNpz(*archive, name, options);
  }
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{")) {
    return ParseJsonCounts(bytes, name);
  }
  return Invalid(name, ": expected a trace (.npz or a JSON object), got ", bytes.size(),
                 " bytes of something else");
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path, const TraceReadOptions& options) {
  absl::StatusOr<std::string> bytes = ReadFileBytes(path);
  if (!bytes.ok()) return bytes.status();
  return ParseTrace(*bytes, path, options);
}

absl::Status WriteTraceFile(const Trace& trace, const std::string& path) {
  if (absl::EndsWith(path, ".json")) {
    const auto* counts = std::get_if<CountTrace>(&trace.routing);
    if (counts == nullptr) {
      return Invalid(path, ": sequences are written as .npz; only counts have a JSON form");
    }
    return WriteFileBytes(path, JsonOfCounts(*counts));
  }
  absl::StatusOr<std::string> bytes = NpzOfTrace(trace);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat(path, ": ", bytes.status().message()));
  }
  return WriteFileBytes(path, *bytes);
}

}  // namespace relibra

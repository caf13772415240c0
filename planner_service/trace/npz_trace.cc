#include "planner_service/trace/npz_trace.h"

#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/npz_fields.h"
#include "planner_service/trace/npz_sequences.h"

namespace relibra {
namespace {

constexpr uint32_t kMostCount = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kMostExperts = 65535;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status Prefixed(absl::string_view where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

absl::StatusOr<Trace> ReadCounts(const NpzFields& fields) {
  absl::StatusOr<const NpyArray*> array = fields.Array("loads", 4, "[M, L, S, E]");
  if (!array.ok()) return array.status();
  const std::vector<size_t>& shape = (*array)->shape;
  absl::StatusOr<std::vector<uint32_t>> counts =
      ToUint32(**array, fields.Where("loads"), 0, kMostCount);
  if (!counts.ok()) return counts.status();
  absl::StatusOr<std::vector<uint32_t>> layer_ids = fields.LayerIds(shape[1]);
  if (!layer_ids.ok()) return layer_ids.status();
  absl::StatusOr<Loads> loads = Loads::FromCounts({.micro_batches = static_cast<int>(shape[0]),
                                                   .layers = static_cast<int>(shape[1]),
                                                   .sources = static_cast<int>(shape[2]),
                                                   .experts = static_cast<int>(shape[3])},
                                                  *std::move(counts));
  if (!loads.ok()) return Prefixed(fields.name(), loads.status());
  if (absl::Status status = loads->CheckSums(); !status.ok()) {
    return Prefixed(fields.Where("loads"), status);
  }
  CountTrace trace{.loads = *std::move(loads), .layer_ids = *std::move(layer_ids)};
  if (fields.Has("top_k")) {
    absl::StatusOr<uint32_t> top_k = fields.Scalar("top_k", 1, kMostExperts);
    if (!top_k.ok()) return top_k.status();
    trace.top_k = static_cast<int>(*top_k);
  }
  if (fields.Has("unrouted_tokens")) {
    absl::StatusOr<std::vector<uint32_t>> unrouted =
        fields.Numbers("unrouted_tokens", {shape[0], shape[1], shape[2]}, 0, kMostCount);
    if (!unrouted.ok()) return unrouted.status();
    trace.unrouted = *std::move(unrouted);
  }
  return Trace{.routing = std::move(trace)};
}

absl::StatusOr<Trace> ReadCountedSequences(const NpzFields& fields,
                                           const TraceReadOptions& options) {
  absl::StatusOr<const NpyArray*> array = fields.Array("sequence_counts", 3, "[Q, L, E]");
  if (!array.ok()) return array.status();
  const std::vector<size_t>& shape = (*array)->shape;
  if (shape[2] > kMostExperts) {
    return Invalid(fields.Where("sequence_counts"), ": expected at most ", kMostExperts,
                   " experts, got ", shape[2]);
  }
  SequenceTrace trace{.num_experts = static_cast<int>(shape[2])};
  absl::StatusOr<std::vector<uint32_t>> counts =
      ToUint32(**array, fields.Where("sequence_counts"), 0, kMostCount);
  if (!counts.ok()) return counts.status();
  trace.counts = *std::move(counts);
  absl::StatusOr<std::vector<uint32_t>> tokens =
      fields.Numbers("sequence_tokens", {shape[0]}, 0, kMostCount);
  if (!tokens.ok()) return tokens.status();
  trace.tokens = *std::move(tokens);
  absl::StatusOr<std::vector<uint32_t>> layer_ids = fields.LayerIds(shape[1]);
  if (!layer_ids.ok()) return layer_ids.status();
  trace.layer_ids = *std::move(layer_ids);
  if (fields.Has("top_k")) {
    absl::StatusOr<uint32_t> top_k = fields.Scalar("top_k", 1, kMostExperts);
    if (!top_k.ok()) return top_k.status();
    trace.top_k = static_cast<int>(*top_k);
  }
  if (fields.Has("unrouted_tokens")) {
    absl::StatusOr<std::vector<uint32_t>> unrouted =
        fields.Numbers("unrouted_tokens", {shape[0], shape[1]}, 0, kMostCount);
    if (!unrouted.ok()) return unrouted.status();
    trace.unrouted = *std::move(unrouted);
  }
  if (absl::Status s = ReadSequenceFields(fields, options, trace); !s.ok()) return s;
  return Trace{.routing = std::move(trace)};
}

absl::StatusOr<Trace> ReadForm(const NpzFields& fields, const NpzArchive& archive,
                               const TraceReadOptions& options) {
  const int forms = (fields.Has("loads") ? 1 : 0) + (fields.Has("routed_experts") ? 1 : 0) +
                    (fields.Has("sequence_counts") ? 1 : 0);
  if (forms != 1) {
    return Invalid(fields.name(),
                   ": expected one of the arrays loads, routed_experts, sequence_counts; it has ",
                   archive.names().empty() ? "no array" : absl::StrJoin(archive.names(), ", "));
  }
  if (fields.Has("loads")) return ReadCounts(fields);
  if (fields.Has("sequence_counts")) return ReadCountedSequences(fields, options);
  const bool raw = fields.Has("token_rank") || fields.Has("token_micro_batch");
  if (raw == fields.Has("sequence_offsets")) {
    return Invalid(fields.name(),
                   ": expected, beside routed_experts, either sequence_offsets or "
                   "token_rank and token_micro_batch");
  }
  return raw ? ReadRawTokens(fields, options) : ReadSequences(fields, options);
}

}  // namespace

absl::StatusOr<Trace> TraceOfNpz(const NpzArchive& archive, absl::string_view name,
                                 const TraceReadOptions& options) {
  absl::StatusOr<Trace> trace = ReadForm(NpzFields(archive, name), archive, options);
  if (!trace.ok()) return trace.status();
  const std::set<absl::string_view> known = {"loads",
                                             "layer_ids",
                                             "routed_experts",
                                             "sequence_offsets",
                                             "sequence_ids",
                                             "sequence_rank",
                                             "num_experts",
                                             "sequence_micro_batch",
                                             "sequence_counts",
                                             "token_rank",
                                             "sequence_tokens",
                                             "prompt_groups",
                                             "token_micro_batch",
                                             "unrouted_tokens",
                                             "top_k"};
  for (const std::string& array : archive.names()) {
    if (known.count(array) == 0) {
      trace->warnings.push_back(absl::StrCat(name, ": array ", array, " is not known and ignored"));
    }
  }
  return trace;
}

}  // namespace relibra

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/npz_sequences.h"

namespace relibra {
namespace {

constexpr uint32_t kMostNumber = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kMostRank = 65534;
constexpr uint32_t kMostMicroBatch = 999'999;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The loads that the sequences' own places would make must fit as well.
absl::Status CheckPlacedMemory(const SequenceTrace& trace, const NpzFields& fields,
                               const TraceReadOptions& options) {
  if (trace.source_ranks.empty()) return absl::OkStatus();
  const uint64_t ranks =
      *std::max_element(trace.source_ranks.begin(), trace.source_ranks.end()) + uint64_t{1};
  const uint64_t micro_batches =
      *std::max_element(trace.micro_batches.begin(), trace.micro_batches.end()) + uint64_t{1};
  if (options.num_ranks > 0 && ranks > static_cast<uint64_t>(options.num_ranks)) {
    return Invalid(fields.Where("sequence_rank"), ": expected ranks 0 to ", options.num_ranks - 1,
                   ", got ", ranks - 1);
  }
  return CheckMemory(
      {micro_batches, trace.num_layers(), ranks, static_cast<uint64_t>(trace.num_experts)}, fields,
      options);
}

}  // namespace

absl::Status CheckMemory(std::initializer_list<uint64_t> dimensions, const NpzFields& fields,
                         const TraceReadOptions& options) {
  uint64_t bytes = sizeof(uint32_t);
  for (uint64_t dimension : dimensions) {
    if (dimension > options.max_bytes / bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(fields.name(), ": counts [", absl::StrJoin(dimensions, ", "),
                       "] take more than the limit of ", options.max_bytes, " bytes"));
    }
    bytes *= dimension;
  }
  return absl::OkStatus();
}

absl::Status ReadSequenceFields(const NpzFields& fields, const TraceReadOptions& options,
                                SequenceTrace& trace) {
  const size_t count = trace.num_sequences();
  if (fields.Has("sequence_ids")) {
    absl::StatusOr<const NpyArray*> array = fields.Array("sequence_ids", 1, "[Q]");
    if (!array.ok()) return array.status();
    absl::StatusOr<std::vector<std::string>> ids = ToStrings(**array, fields.Where("sequence_ids"));
    if (!ids.ok()) return ids.status();
    trace.ids = *std::move(ids);
    if (trace.ids.size() != count) {
      return Invalid(fields.Where("sequence_ids"), ": expected ", count, " sequences, got ",
                     trace.ids.size());
    }
    std::set<absl::string_view> seen;
    for (size_t q = 0; q < count; ++q) {
      if (seen.insert(trace.ids[q]).second) continue;
      return Invalid(fields.Where("sequence_ids"), "[", q, "]: \"", trace.ids[q],
                     "\" stands there twice");
    }
  } else {
    for (size_t q = 0; q < count; ++q) trace.ids.push_back(absl::StrCat(q));
  }
  struct Field {
    const char* name;
    std::vector<uint32_t>* numbers;
    uint32_t most;
  };
  for (const Field& field :
       {Field{"prompt_groups", &trace.prompt_groups, kMostNumber},
        Field{"sequence_rank", &trace.source_ranks, kMostRank},
        Field{"sequence_micro_batch", &trace.micro_batches, kMostMicroBatch}}) {
    if (!fields.Has(field.name)) continue;
    absl::StatusOr<std::vector<uint32_t>> numbers =
        fields.Numbers(field.name, {count}, 0, field.most);
    if (!numbers.ok()) return numbers.status();
    *field.numbers = *std::move(numbers);
  }
  if (trace.source_ranks.empty() != trace.micro_batches.empty()) {
    return Invalid(fields.name(),
                   ": expected both sequence_rank and sequence_micro_batch, or neither");
  }
  return CheckPlacedMemory(trace, fields, options);
}

}  // namespace relibra

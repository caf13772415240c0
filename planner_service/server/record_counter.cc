#include "planner_service/server/record_counter.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "planner_service/server/quoted.h"

namespace relibra::server {
namespace {

constexpr size_t kMaxIdBytes = 128;
constexpr uint64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// Where a record is at fault: "sequence "a": what".
template <typename... Parts>
absl::Status Bad(const v1::RoutingRecord& record, const Parts&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat("sequence ", Quoted(record.sequence_id()), ": ", what...));
}

absl::Status CheckTexts(const v1::RoutingRecord& record) {
  for (auto [field, text] :
       {std::pair<const char*, const std::string&>{"sequence_id", record.sequence_id()},
        {"prompt_group", record.prompt_group()}}) {
    if (text.size() > kMaxIdBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected at most ", kMaxIdBytes, " bytes, got ", text.size()));
    }
  }
  if (record.sequence_id().empty()) {
    return absl::InvalidArgumentError("sequence_id: expected 1 to 128 bytes, got none");
  }
  return absl::OkStatus();
}

absl::Status CheckAxis(const Job& job, const v1::RoutingRecord& record, uint32_t num_layers) {
  if (num_layers == static_cast<uint32_t>(job.axis_length)) return absl::OkStatus();
  const bool all_layers = job.spec.layer_axis() == v1::LAYER_AXIS_ALL_LAYERS;
  const uint32_t other_length = all_layers ? job.num_layers() : job.spec.num_hidden_layers();
  return Bad(record, "num_layers: expected ", job.axis_length, " (",
             all_layers ? "all hidden layers" : "the MoE layers alone", ", ",
             v1::LayerAxis_Name(job.spec.layer_axis()), "), got ", num_layers,
             num_layers == other_length ? absl::StrCat("; that is the number of ",
                                                       all_layers ? "MoE layers" : "hidden layers",
                                                       ": is the job's layer_axis right?")
                                        : "");
}

std::optional<IdType> CoreIdType(v1::IdType type) {
  switch (type) {
    case v1::ID_TYPE_UINT8:
      return IdType::kUint8;
    case v1::ID_TYPE_INT8:
      return IdType::kInt8;
    case v1::ID_TYPE_INT16:
      return IdType::kInt16;
    case v1::ID_TYPE_UINT16:
      return IdType::kUint16;
    case v1::ID_TYPE_INT32:
      return IdType::kInt32;
    case v1::ID_TYPE_INT64:
      return IdType::kInt64;
    default:
      return std::nullopt;
  }
}

absl::Status CheckIdsShape(const Job& job, const v1::RoutingRecord& record) {
  const v1::RoutedIds& ids = record.ids();
  const std::optional<IdType> type = CoreIdType(ids.id_type());
  if (!type.has_value()) {
    return Bad(record, "ids.id_type: expected a known type, got ", ids.id_type());
  }
  const v1::IdType wanted = job.spec.id_type();
  if (wanted != v1::ID_TYPE_UNSPECIFIED && ids.id_type() != wanted) {
    return Bad(record, "ids.id_type: expected the job's ", v1::IdType_Name(wanted), ", got ",
               v1::IdType_Name(ids.id_type()));
  }
  absl::Status fits = CheckIdType(*type, job.num_experts());
  if (!fits.ok()) return Bad(record, "ids.id_type: ", fits.message());
  absl::Status axis = CheckAxis(job, record, ids.num_layers());
  if (!axis.ok()) return axis;
  if (ids.top_k() != static_cast<uint32_t>(job.top_k())) {
    return Bad(record, "ids.top_k: expected ", job.top_k(), ", got ", ids.top_k());
  }
  const uint64_t expected =
      uint64_t{ids.num_tokens()} * ids.num_layers() * ids.top_k() * BytesOf(*type);
  if (ids.ids().size() != expected) {
    return Bad(record, "ids.ids: expected ", expected, " bytes (", ids.num_tokens(), " tokens x ",
               ids.num_layers(), " layers x ", ids.top_k(), " ids of ", BytesOf(*type),
               " bytes), got ", ids.ids().size());
  }
  return absl::OkStatus();
}

std::vector<uint64_t> HashRows(const v1::RoutedIds& ids) {
  std::vector<uint64_t> hashes(ids.num_tokens());
  const size_t row_bytes = ids.num_tokens() == 0 ? 0 : ids.ids().size() / ids.num_tokens();
  for (size_t row = 0; row < hashes.size(); ++row) {
    hashes[row] = absl::HashOf(absl::string_view(ids.ids().data() + row * row_bytes, row_bytes));
  }
  return hashes;
}

RouteCounts NoRoutes(size_t num_layers, size_t num_experts) {
  RouteCounts routes;
  routes.counts.resize(num_layers * num_experts);
  routes.unrouted.resize(num_layers);
  return routes;
}

absl::Status CountCounts(const Job& job, const v1::RoutingRecord& record, RouteCounts& out) {
  const v1::RoutedCounts& counts = record.counts();
  const auto num_layers = static_cast<uint32_t>(job.num_layers());
  const auto num_experts = static_cast<uint32_t>(job.num_experts());
  if (counts.num_layers() != num_layers) {
    return Bad(record, "counts.num_layers: expected ", num_layers, ", got ", counts.num_layers());
  }
  if (counts.num_experts() != num_experts) {
    return Bad(record, "counts.num_experts: expected ", num_experts, ", got ",
               counts.num_experts());
  }
  if (static_cast<size_t>(counts.counts_size()) != out.counts.size()) {
    return Bad(record, "counts.counts: expected ", num_layers, " x ", num_experts, " = ",
               out.counts.size(), " counts, got ", counts.counts_size());
  }
  std::copy(counts.counts().begin(), counts.counts().end(), out.counts.begin());
  for (uint32_t l = 0; l < num_layers; ++l) {
    uint64_t pairs = 0;
    for (uint32_t e = 0; e < num_experts; ++e) {
      const uint32_t count = out.counts[size_t{1} * l * num_experts + e];
      if (count > counts.num_tokens()) {
        return Bad(record, "layer ", job.LayerId(static_cast<int>(l)), ", expert ", e,
                   ": expected at most ", counts.num_tokens(), " (num_tokens), got ", count);
      }
      pairs += count;
    }
    const uint64_t most = counts.num_tokens() * static_cast<uint64_t>(job.top_k());
    if (pairs > most) {
      return Bad(record, "layer ", job.LayerId(static_cast<int>(l)), ": expected at most ", most,
                 " (token, choice) pairs (num_tokens x top_k), got ", pairs);
    }
    // Choices that a router dropped are neither load nor missing; whole tokens are.
    out.unrouted[l] = static_cast<uint32_t>((most - pairs) / job.top_k());
  }
  return absl::OkStatus();
}

absl::Status CheckExtent(const v1::RoutingRecord& record, uint32_t num_tokens) {
  const uint64_t end = uint64_t{record.token_offset()} + num_tokens;
  if (end > kMaxTokens || record.sequence_tokens() > kMaxTokens) {
    return Bad(record, "expected at most ", kMaxTokens, " tokens in a sequence, got ",
               std::max<uint64_t>(end, record.sequence_tokens()));
  }
  return absl::OkStatus();
}

}  // namespace

RouteCounts CountedRecord::CountRows(uint32_t first_row, uint32_t num_rows) const {
  const RoutedIdLayout& layout = counter->layout();
  RouteCounts part = NoRoutes(counter->num_counted_layers(), layout.num_experts);
  RoutingTally tally = {.counts = absl::MakeSpan(part.counts),
                        .unrouted = absl::MakeSpan(part.unrouted)};
  const size_t row_bytes = counter->bytes_per_token();
  counter->Add(
      absl::string_view(record->ids().ids()).substr(first_row * row_bytes, num_rows * row_bytes),
      tally);
  return part;
}

absl::StatusOr<const RoutedIdCounter*> RecordCounter::CounterOf(v1::IdType type) {
  const auto found = counters_.find(type);
  if (found != counters_.end()) return &found->second;
  const auto& layer_ids = job_->spec.model().moe_layer_ids();
  absl::StatusOr<RoutedIdCounter> made =
      RoutedIdCounter::Create({.type = *CoreIdType(type),
                               .num_layers = job_->axis_length,
                               .top_k = job_->top_k(),
                               .num_experts = job_->num_experts(),
                               .counted_rows = job_->layer_rows,
                               .layer_ids = {layer_ids.begin(), layer_ids.end()}});
  if (!made.ok()) return made.status();
  return &counters_.emplace(type, *std::move(made)).first->second;
}

absl::Status RecordCounter::CountIds(CountedRecord& counted) {
  const v1::RoutingRecord& record = *counted.record;
  absl::Status status = CheckIdsShape(*job_, record);
  if (!status.ok()) return status;
  absl::StatusOr<const RoutedIdCounter*> counter = CounterOf(record.ids().id_type());
  if (!counter.ok()) return counter.status();
  counted.counter = *counter;
  const std::string quoted = Quoted(record.sequence_id());
  const std::string sequence = absl::Utf8SafeCEscape(record.sequence_id());
  RoutingTally tally = {.counts = absl::MakeSpan(counted.routes.counts),
                        .unrouted = absl::MakeSpan(counted.routes.unrouted)};
  const absl::string_view ids = record.ids().ids();
  status = counted.counter->Count(
      ids, {.sequence = sequence, .token_offset = record.token_offset()}, tally);
  if (!status.ok()) return status;
  counted.row_hashes = HashRows(record.ids());
  if (counted.counter->MostRowsIdentical(ids)) {
    counted.warning = absl::StrCat("sequence ", quoted, ": over half of its ", counted.num_tokens,
                                   " rows are identical; is this a warm-up pass?");
  } else if (tally.partly_routed_rows > 0) {
    counted.warning = absl::StrCat("sequence ", quoted, ": ", tally.partly_routed_rows,
                                   " (token, layer) rows are routed to fewer than top_k experts");
  }
  return absl::OkStatus();
}

absl::StatusOr<CountedRecord> RecordCounter::Count(const v1::RoutingRecord& record) {
  absl::Status status = CheckTexts(record);
  if (!status.ok()) return status;
  CountedRecord counted;
  counted.record = &record;
  counted.routes = NoRoutes(job_->num_layers(), job_->num_experts());
  switch (record.routing_case()) {
    case v1::RoutingRecord::kIds:
      counted.num_tokens = record.ids().num_tokens();
      status = CheckExtent(record, counted.num_tokens);
      if (status.ok()) status = CountIds(counted);
      break;
    case v1::RoutingRecord::kCounts:
      counted.num_tokens = record.counts().num_tokens();
      status = CheckExtent(record, counted.num_tokens);
      if (status.ok()) status = CountCounts(*job_, record, counted.routes);
      counted.counts_hash = absl::HashOf(counted.routes.counts);
      break;
    default:
      status = Bad(record, "routing: expected ids or counts, got none");
  }
  if (!status.ok()) return status;
  return counted;
}

}  // namespace relibra::server

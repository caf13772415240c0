#include "planner_service/trace/npz_sequences.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner_service/trace/routed_ids.h"

namespace relibra {
namespace {

constexpr uint32_t kMostRank = 65534;
constexpr uint32_t kMostMicroBatch = 999'999;
constexpr uint32_t kMostExperts = 65535;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status Prefixed(absl::string_view where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// A layer without any route is a dense layer: its tokens are not missing. stride: places a layer
// index recurs after; the index of place i is i / inner % layers.
void ForgetDenseLayers(const std::vector<bool>& has_routes, size_t inner,
                       std::vector<uint32_t>& unrouted) {
  for (size_t i = 0; i < unrouted.size(); ++i) {
    if (!has_routes[i / inner % has_routes.size()]) unrouted[i] = 0;
  }
  const bool none =
      std::all_of(unrouted.begin(), unrouted.end(), [](uint32_t count) { return count == 0; });
  if (none) unrouted.clear();
}

// The type in which to read the ids. Unsigned 32 and 64 bit are read as signed once no id needs the
// top bit.
absl::StatusOr<IdType> IdTypeOf(const NpyArray& array, absl::string_view where) {
  const bool is_signed = array.kind == 'i';
  if (!is_signed && array.kind != 'u') {
    return Invalid(where, ": expected an integer dtype, got ", DtypeName(array));
  }
  switch (array.item_bytes) {
    case 1:
      return is_signed ? IdType::kInt8 : IdType::kUint8;
    case 2:
      return is_signed ? IdType::kInt16 : IdType::kUint16;
    default:
      break;
  }
  for (size_t i = 0; !is_signed && i < array.size(); ++i) {
    if ((array.data[(i + 1) * array.item_bytes - 1] & 0x80) != 0) {
      return Invalid(where, PlaceText(array.shape, i), ": expected a logical expert, got a number ",
                     "above 2^", array.item_bytes * 8 - 1);
    }
  }
  return array.item_bytes == 4 ? IdType::kInt32 : IdType::kInt64;
}

// routed_experts with what is needed to count them.
struct Ids {
  absl::string_view bytes;
  size_t tokens;
  RoutedIdCounter counter;

  absl::string_view Rows(size_t first, size_t end) const {
    return bytes.substr(first * counter.bytes_per_token(),
                        (end - first) * counter.bytes_per_token());
  }
};

// Which rows of the layer axis count: those of options.moe_layers.
absl::Status ChooseLayers(const NpzFields& fields, const TraceReadOptions& options,
                          const std::vector<uint32_t>& axis, RoutedIdLayout& layout) {
  layout.layer_ids = options.moe_layers.empty() ? axis : options.moe_layers;
  for (uint32_t layer : layout.layer_ids) {
    const auto row = std::lower_bound(axis.begin(), axis.end(), layer);
    if (row == axis.end() || *row != layer) {
      return Invalid(fields.Where("routed_experts"), ": expected a row for MoE layer ", layer,
                     "; its layer axis has ", axis.size(), " rows, ", axis.front(), " to ",
                     axis.back());
    }
    layout.counted_rows.push_back(static_cast<int>(row - axis.begin()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Ids> ReadIds(const NpzFields& fields, const TraceReadOptions& options) {
  const std::string where = fields.Where("routed_experts");
  absl::StatusOr<const NpyArray*> array = fields.Array("routed_experts", 3, "[T, L, K]");
  if (!array.ok()) return array.status();
  absl::StatusOr<IdType> type = IdTypeOf(**array, where);
  if (!type.ok()) return type.status();
  absl::StatusOr<uint32_t> num_experts = fields.Scalar("num_experts", 1, kMostExperts);
  if (!num_experts.ok()) return num_experts.status();
  const std::vector<size_t>& shape = (*array)->shape;
  absl::StatusOr<std::vector<uint32_t>> axis = fields.LayerIds(shape[1]);
  if (!axis.ok()) return axis.status();
  RoutedIdLayout layout{.type = *type,
                        .num_layers = static_cast<int>(shape[1]),
                        .top_k = static_cast<int>(shape[2]),
                        .num_experts = static_cast<int>(*num_experts)};
  if (absl::Status s = ChooseLayers(fields, options, *axis, layout); !s.ok()) return s;
  absl::StatusOr<RoutedIdCounter> counter = RoutedIdCounter::Create(std::move(layout));
  if (!counter.ok()) return Prefixed(where, counter.status());
  return Ids{.bytes = (*array)->data, .tokens = shape[0], .counter = *std::move(counter)};
}

void Warn(std::vector<std::string>& warnings, absl::string_view name, uint64_t partly_routed_rows,
          const std::vector<std::string>& repetitive) {
  if (!repetitive.empty()) {
    const size_t shown = std::min<size_t>(repetitive.size(), 3);
    warnings.push_back(absl::StrCat(
        name, ": over half of the rows are alike, as warm-up passes have them, in ",
        repetitive.size(), " of the records: ",
        absl::StrJoin(repetitive.begin(), repetitive.begin() + static_cast<ptrdiff_t>(shown), ", "),
        repetitive.size() > shown ? ", …" : ""));
  }
  if (partly_routed_rows > 0) {
    warnings.push_back(absl::StrCat(name, ": ", partly_routed_rows,
                                    " (token, layer) rows have only some ids below zero: those "
                                    "choices are taken as dropped by the router"));
  }
}

absl::StatusOr<std::vector<uint64_t>> ReadOffsets(const NpzFields& fields, size_t tokens) {
  const std::string where = fields.Where("sequence_offsets");
  absl::StatusOr<const NpyArray*> array = fields.Array("sequence_offsets", 1, "[Q + 1]");
  if (!array.ok()) return array.status();
  absl::StatusOr<std::vector<uint64_t>> offsets = ToUint64(**array, where);
  if (!offsets.ok()) return offsets.status();
  if (offsets->size() < 2 || offsets->front() != 0 || offsets->back() != tokens) {
    return Invalid(where, ": expected at least 2 offsets from 0 to the ", tokens,
                   " rows of routed_experts, got ", offsets->size(), " from ", offsets->front(),
                   " to ", offsets->back());
  }
  for (size_t q = 1; q < offsets->size(); ++q) {
    if ((*offsets)[q] < (*offsets)[q - 1]) {
      return Invalid(where, "[", q, "]: expected at least ", (*offsets)[q - 1], ", got ",
                     (*offsets)[q]);
    }
  }
  return offsets;
}

// Counts every sequence's rows into trace.counts and trace.unrouted.
absl::Status CountSequences(const Ids& ids, const std::vector<uint64_t>& offsets,
                            const NpzFields& fields, SequenceTrace& trace,
                            std::vector<std::string>& warnings) {
  const size_t num_layers = trace.num_layers();
  const size_t histogram = num_layers * trace.num_experts;
  trace.counts.resize(trace.num_sequences() * histogram);
  trace.unrouted.resize(trace.num_sequences() * num_layers);
  std::vector<std::string> repetitive;
  uint64_t partly_routed_rows = 0;
  for (size_t q = 0; q < trace.num_sequences(); ++q) {
    const absl::string_view rows = ids.Rows(offsets[q], offsets[q + 1]);
    RoutingTally tally{
        .counts = absl::MakeSpan(trace.counts).subspan(q * histogram, histogram),
        .unrouted = absl::MakeSpan(trace.unrouted).subspan(q * num_layers, num_layers)};
    absl::Status status = ids.counter.Count(rows, {.sequence = trace.ids[q]}, tally);
    if (!status.ok()) return Prefixed(fields.Where("routed_experts"), status);
    partly_routed_rows += tally.partly_routed_rows;
    if (ids.counter.MostRowsIdentical(rows)) repetitive.push_back(trace.ids[q]);
  }
  Warn(warnings, fields.name(), partly_routed_rows, repetitive);
  std::vector<bool> has_routes(num_layers);
  for (size_t i = 0; i < trace.counts.size(); ++i) {
    if (trace.counts[i] > 0) has_routes[i / trace.num_experts % num_layers] = true;
  }
  ForgetDenseLayers(has_routes, 1, trace.unrouted);
  return absl::OkStatus();
}

// Where each token of a raw trace belongs.
struct TokenPlaces {
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> micro_batches;
  int num_ranks = 0;
  int num_micro_batches = 0;

  size_t CellOf(size_t token) const {
    return size_t{1} * micro_batches[token] * num_ranks + ranks[token];
  }
};

absl::StatusOr<TokenPlaces> ReadTokenPlaces(const NpzFields& fields, size_t tokens,
                                            const TraceReadOptions& options) {
  const uint32_t last_rank =
      options.num_ranks > 0 ? static_cast<uint32_t>(options.num_ranks) - 1 : kMostRank;
  absl::StatusOr<std::vector<uint32_t>> ranks =
      fields.Numbers("token_rank", {tokens}, 0, last_rank);
  if (!ranks.ok()) return ranks.status();
  absl::StatusOr<std::vector<uint32_t>> micro_batches =
      fields.Numbers("token_micro_batch", {tokens}, 0, kMostMicroBatch);
  if (!micro_batches.ok()) return micro_batches.status();
  TokenPlaces places{.ranks = *std::move(ranks), .micro_batches = *std::move(micro_batches)};
  places.num_ranks =
      options.num_ranks > 0
          ? options.num_ranks
          : static_cast<int>(*std::max_element(places.ranks.begin(), places.ranks.end())) + 1;
  places.num_micro_batches = static_cast<int>(*std::max_element(places.micro_batches.begin(),
                                                                places.micro_batches.end())) +
                             1;
  return places;
}

// Counts the tokens cell by cell, a cell being a (micro-batch, rank): tokens of one cell are often
// neighbours, and one cell's histogram stays in the cache.
void CountTokens(const Ids& ids, const TokenPlaces& places, CountTrace& trace,
                 uint64_t& partly_routed_rows) {
  std::vector<uint32_t> order(ids.tokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return places.CellOf(a) < places.CellOf(b); });
  const int num_layers = trace.loads.shape().layers;
  const int num_experts = trace.loads.shape().experts;
  std::vector<uint32_t> counts(size_t{1} * num_layers * num_experts);
  std::vector<uint32_t> unrouted(num_layers);
  for (size_t i = 0; i < order.size();) {
    const size_t cell = places.CellOf(order[i]);
    std::fill(counts.begin(), counts.end(), 0);
    std::fill(unrouted.begin(), unrouted.end(), 0);
    RoutingTally tally{.counts = absl::MakeSpan(counts), .unrouted = absl::MakeSpan(unrouted)};
    while (i < order.size() && places.CellOf(order[i]) == cell) {
      const size_t first = order[i];
      size_t end = first + 1;
      for (++i; i < order.size() && order[i] == end && places.CellOf(end) == cell; ++i) ++end;
      ids.counter.Add(ids.Rows(first, end), tally);
    }
    partly_routed_rows += tally.partly_routed_rows;
    const int m = static_cast<int>(cell / places.num_ranks);
    const size_t rank = cell % places.num_ranks;
    for (int l = 0; l < num_layers; ++l) {
      std::copy_n(counts.begin() + size_t{1} * l * num_experts, num_experts,
                  trace.loads.Mutable(m, l).begin() + rank * num_experts);
      trace.unrouted[(size_t{1} * m * num_layers + l) * places.num_ranks + rank] = unrouted[l];
    }
  }
}

}  // namespace

absl::StatusOr<Trace> ReadSequences(const NpzFields& fields, const TraceReadOptions& options) {
  absl::StatusOr<Ids> ids = ReadIds(fields, options);
  if (!ids.ok()) return ids.status();
  absl::StatusOr<std::vector<uint64_t>> offsets = ReadOffsets(fields, ids->tokens);
  if (!offsets.ok()) return offsets.status();
  SequenceTrace sequences{.num_experts = ids->counter.layout().num_experts,
                          .top_k = ids->counter.layout().top_k,
                          .layer_ids = ids->counter.layout().layer_ids};
  for (size_t q = 0; q + 1 < offsets->size(); ++q) {
    sequences.tokens.push_back(static_cast<uint32_t>((*offsets)[q + 1] - (*offsets)[q]));
  }
  absl::Status status = CheckMemory({sequences.num_sequences(), sequences.num_layers(),
                                     static_cast<uint64_t>(sequences.num_experts)},
                                    fields, options);
  if (!status.ok()) return status;
  if (absl::Status s = ReadSequenceFields(fields, options, sequences); !s.ok()) return s;
  std::vector<std::string> warnings;
  status = CountSequences(*ids, *offsets, fields, sequences, warnings);
  if (!status.ok()) return status;
  return Trace{.routing = std::move(sequences), .warnings = std::move(warnings)};
}

absl::StatusOr<Trace> ReadRawTokens(const NpzFields& fields, const TraceReadOptions& options) {
  absl::StatusOr<Ids> ids = ReadIds(fields, options);
  if (!ids.ok()) return ids.status();
  absl::StatusOr<TokenPlaces> places = ReadTokenPlaces(fields, ids->tokens, options);
  if (!places.ok()) return places.status();
  const int num_layers = ids->counter.num_counted_layers();
  const int num_experts = ids->counter.layout().num_experts;
  absl::Status status = CheckMemory(
      {static_cast<uint64_t>(places->num_micro_batches), static_cast<uint64_t>(num_layers),
       static_cast<uint64_t>(places->num_ranks), static_cast<uint64_t>(num_experts)},
      fields, options);
  if (!status.ok()) return status;
  status = ids->counter.Check(ids->bytes, {});
  if (!status.ok()) return Prefixed(fields.Where("routed_experts"), status);
  absl::StatusOr<Loads> loads = Loads::Create({.micro_batches = places->num_micro_batches,
                                               .layers = num_layers,
                                               .sources = places->num_ranks,
                                               .experts = num_experts});
  if (!loads.ok()) return Prefixed(fields.name(), loads.status());
  CountTrace trace{.loads = *std::move(loads),
                   .layer_ids = ids->counter.layout().layer_ids,
                   .top_k = ids->counter.layout().top_k};
  trace.unrouted.resize(size_t{1} * places->num_micro_batches * num_layers * places->num_ranks);
  uint64_t partly_routed_rows = 0;
  CountTokens(*ids, *places, trace, partly_routed_rows);
  std::vector<bool> has_routes(num_layers);
  for (int m = 0; m < places->num_micro_batches; ++m) {
    for (int l = 0; l < num_layers; ++l) {
      const absl::Span<const uint32_t> matrix = trace.loads.At(m, l);
      if (std::any_of(matrix.begin(), matrix.end(), [](uint32_t c) { return c > 0; })) {
        has_routes[l] = true;
      }
    }
  }
  ForgetDenseLayers(has_routes, places->num_ranks, trace.unrouted);
  std::vector<std::string> warnings;
  std::vector<std::string> repetitive;
  if (ids->counter.MostRowsIdentical(ids->bytes)) repetitive.push_back("routed_experts");
  Warn(warnings, fields.name(), partly_routed_rows, repetitive);
  return Trace{.routing = std::move(trace), .warnings = std::move(warnings)};
}

}  // namespace relibra

#include "planner_service/trace/routed_ids.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

// Calls f with a value of the C++ type of `type`.
template <typename F>
auto WithType(IdType type, F f) {
  switch (type) {
    case IdType::kUint8:
      return f(uint8_t{});
    case IdType::kInt8:
      return f(int8_t{});
    case IdType::kInt16:
      return f(int16_t{});
    case IdType::kUint16:
      return f(uint16_t{});
    case IdType::kInt32:
      return f(int32_t{});
    case IdType::kInt64:
      break;
  }
  return f(int64_t{});
}

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// How messages about a record start.
std::string NameOf(const RowOrigin& origin) {
  return origin.sequence.empty() ? "" : absl::StrCat("sequence \"", origin.sequence, "\", ");
}

// Hands `visit` one tile after the other, aligned: visit(const Id* ids, size_t first_token,
// size_t tokens) returns false to stop.
template <typename Id, typename Visit>
void ForEachTile(absl::string_view bytes, size_t ids_per_token, size_t tokens_per_tile,
                 Visit visit) {
  const size_t tokens = bytes.size() / (ids_per_token * sizeof(Id));
  const size_t tile_ids = ids_per_token * tokens_per_tile;
  std::unique_ptr<Id[]> aligned;  // records start at any byte of a message
  if (sizeof(Id) > 1) aligned = std::make_unique_for_overwrite<Id[]>(tile_ids);
  for (size_t first = 0; first < tokens; first += tokens_per_tile) {
    const size_t count = std::min(tokens_per_tile, tokens - first);
    const char* start = bytes.data() + first * ids_per_token * sizeof(Id);
    const Id* ids = nullptr;
    if constexpr (sizeof(Id) == 1) {
      ids = reinterpret_cast<const Id*>(start);
    } else {
      std::memcpy(aligned.get(), start, count * ids_per_token * sizeof(Id));
      ids = aligned.get();
    }
    if (!visit(ids, first, count)) return;
  }
}

absl::Status CheckLayout(const RoutedIdLayout& layout) {
  constexpr int kMost = 65535;
  for (auto [name, size] : {std::pair{"num_layers", layout.num_layers},
                            {"top_k", layout.top_k},
                            {"num_experts", layout.num_experts}}) {
    if (size < 1 || size > kMost) {
      return Invalid(name, ": expected 1 to ", kMost, ", got ", size);
    }
  }
  if (layout.top_k > layout.num_experts) {
    return Invalid("top_k: expected at most the ", layout.num_experts, " experts, got ",
                   layout.top_k);
  }
  // Bounds the masks to some 64 MiB whatever a file claims.
  constexpr int kMostChoices = 128;
  constexpr int64_t kMostIds = int64_t{1} << 16;
  if (layout.top_k > kMostChoices) {
    return Invalid("top_k: expected at most ", kMostChoices, ", got ", layout.top_k);
  }
  if (int64_t{layout.num_layers} * layout.top_k > kMostIds) {
    return Invalid("num_layers x top_k: expected at most ", kMostIds, ", got ",
                   int64_t{layout.num_layers} * layout.top_k);
  }
  for (size_t i = 0; i < layout.counted_rows.size(); ++i) {
    const int least = i == 0 ? 0 : layout.counted_rows[i - 1] + 1;
    if (layout.counted_rows[i] < least || layout.counted_rows[i] >= layout.num_layers) {
      return Invalid("layer ", i, ": expected a row from ", least, " to ", layout.num_layers - 1,
                     " of the layer axis, got row ", layout.counted_rows[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

size_t BytesOf(IdType type) {
  return WithType(type, [](auto id) { return sizeof(id); });
}

absl::string_view NameOf(IdType type) {
  switch (type) {
    case IdType::kUint8:
      return "uint8";
    case IdType::kInt8:
      return "int8";
    case IdType::kInt16:
      return "int16";
    case IdType::kUint16:
      return "uint16";
    case IdType::kInt32:
      return "int32";
    case IdType::kInt64:
      break;
  }
  return "int64";
}

absl::Status CheckIdType(IdType type, int num_experts) {
  const int64_t largest =
      WithType(type, [](auto id) { return int64_t{std::numeric_limits<decltype(id)>::max()}; });
  if (num_experts - 1 <= largest) return absl::OkStatus();
  return Invalid("ids of type ", NameOf(type), " hold experts up to ", largest, ", too few for ",
                 num_experts, " experts");
}

absl::StatusOr<RoutedIdCounter> RoutedIdCounter::Create(RoutedIdLayout layout) {
  if (absl::Status status = CheckLayout(layout); !status.ok()) return status;
  if (absl::Status status = CheckIdType(layout.type, layout.num_experts); !status.ok()) {
    return status;
  }
  if (layout.counted_rows.empty()) {
    for (int row = 0; row < layout.num_layers; ++row) layout.counted_rows.push_back(row);
  }
  if (layout.layer_ids.empty()) {
    for (size_t l = 0; l < layout.counted_rows.size(); ++l) layout.layer_ids.push_back(l);
  }
  if (layout.layer_ids.size() != layout.counted_rows.size()) {
    return Invalid("layer_ids: expected ", layout.counted_rows.size(), " as rows are counted, got ",
                   layout.layer_ids.size());
  }
  return RoutedIdCounter(std::move(layout));
}

RoutedIdCounter::RoutedIdCounter(RoutedIdLayout layout) : layout_(std::move(layout)) {
  // Long enough for SIMD, short enough to stay in the first cache beside its masks.
  constexpr size_t kTileIds = 512;
  ids_per_token_ = size_t{1} * layout_.num_layers * layout_.top_k;
  bytes_per_token_ = ids_per_token_ * BytesOf(layout_.type);
  tokens_per_tile_ = std::max<size_t>(1, kTileIds / ids_per_token_);
  WithType(layout_.type, [this](auto id) { BuildMasks<decltype(id)>(); });
}

template <typename Id>
void RoutedIdCounter::BuildMasks() {
  const size_t top_k = layout_.top_k;
  const size_t tile_ids = ids_per_token_ * tokens_per_tile_;
  std::vector<Id> masks(top_k * tile_ids, 0);
  for (size_t d = 0; d < top_k; ++d) {
    for (size_t token = 0; token < tokens_per_tile_; ++token) {
      for (int row : layout_.counted_rows) {
        Id* mask = &masks[d * tile_ids + token * ids_per_token_ + row * top_k];
        std::fill(mask, mask + (top_k - d), static_cast<Id>(-1));
      }
    }
  }
  masks_.resize(masks.size() * sizeof(Id));
  std::memcpy(masks_.data(), masks.data(), masks_.size());
}

template <typename Id>
bool RoutedIdCounter::Suspicious(const Id* ids, size_t count) const {
  const size_t tile_ids = ids_per_token_ * tokens_per_tile_;
  const Id* masks = reinterpret_cast<const Id*>(masks_.data());
  Id largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<Id>(ids[i] & masks[i]));
  }
  if (int64_t{+largest} >= layout_.num_experts) return true;
  // Every pair of ids of a row stands at some distance d.
  Id twice = 0;
  for (size_t d = 1; d < static_cast<size_t>(layout_.top_k); ++d) {
    const Id* mask = masks + d * tile_ids;
    for (size_t i = 0; i + d < count; ++i) {
      Id same = static_cast<Id>((ids[i] == ids[i + d] ? -1 : 0) & mask[i]);
      if constexpr (std::is_signed_v<Id>) same &= static_cast<Id>(ids[i] < 0 ? 0 : -1);
      twice |= same;
    }
  }
  return twice != 0;
}

template <typename Id>
absl::Status RoutedIdCounter::CheckRows(const Id* ids, size_t tokens,
                                        const RowOrigin& origin) const {
  for (size_t token = 0; token < tokens; ++token) {
    for (size_t l = 0; l < layout_.counted_rows.size(); ++l) {
      const Id* row =
          ids + token * ids_per_token_ + size_t{1} * layout_.counted_rows[l] * layout_.top_k;
      for (int k = 0; k < layout_.top_k; ++k) {
        auto where = [&] {
          return absl::StrCat(NameOf(origin), "token ", origin.token_offset + token, ", layer ",
                              layout_.layer_ids[l], ", slot ", k, ": ");
        };
        const int64_t id = +row[k];  // promoted, whatever its sign
        if (id >= layout_.num_experts) {
          return Invalid(where(), "expected a logical expert from 0 to ", layout_.num_experts - 1,
                         ", got ", id, " (a physical id after EPLB?)");
        }
        if (id < 0) continue;
        const Id* before = std::find(row, row + k, row[k]);
        if (before == row + k) continue;
        return Invalid(where(), "expert ", id, " stands in slot ", before - row, " already",
                       id == 0 ? " (zeros for a route that was not recorded? send -1)" : "");
      }
    }
  }
  return absl::OkStatus();
}

template <typename Id>
absl::Status RoutedIdCounter::CheckAs(absl::string_view ids, const RowOrigin& origin) const {
  absl::Status status;
  ForEachTile<Id>(
      ids, ids_per_token_, tokens_per_tile_, [&](const Id* tile, size_t first, size_t tokens) {
        if (!Suspicious(tile, tokens * ids_per_token_)) return true;
        status =
            CheckRows(tile, tokens,
                      {.sequence = origin.sequence, .token_offset = origin.token_offset + first});
        return status.ok();
      });
  return status;
}

absl::Status RoutedIdCounter::Check(absl::string_view ids, const RowOrigin& origin) const {
  if (ids.size() % bytes_per_token_ != 0) {
    return Invalid(NameOf(origin), "expected a multiple of ", bytes_per_token_, " bytes (",
                   layout_.num_layers, " layers x ", layout_.top_k, " ids of ",
                   NameOf(layout_.type), "), got ", ids.size());
  }
  const size_t tokens = ids.size() / bytes_per_token_;
  if (tokens > std::numeric_limits<uint32_t>::max()) {
    return Invalid(NameOf(origin), "expected fewer than 2^32 tokens, got ", tokens);
  }
  return WithType(layout_.type, [&](auto id) { return CheckAs<decltype(id)>(ids, origin); });
}

template <typename Id>
void RoutedIdCounter::AddAs(absl::string_view ids, RoutingTally& tally) const {
  const size_t top_k = layout_.top_k;
  const size_t num_experts = layout_.num_experts;
  const size_t num_layers = layout_.counted_rows.size();
  ForEachTile<Id>(ids, ids_per_token_, tokens_per_tile_,
                  [&](const Id* tile, size_t, size_t tokens) {
                    bool any_below_zero = false;
                    if constexpr (std::is_signed_v<Id>) {
                      Id all = 0;
                      for (size_t i = 0; i < tokens * ids_per_token_; ++i) all |= tile[i];
                      any_below_zero = all < 0;
                    }
                    for (size_t token = 0; token < tokens; ++token) {
                      const Id* of_token = tile + token * ids_per_token_;
                      for (size_t l = 0; l < num_layers; ++l) {
                        const Id* row = of_token + layout_.counted_rows[l] * top_k;
                        uint32_t* counts = tally.counts.data() + l * num_experts;
                        if (!any_below_zero) {
                          for (size_t k = 0; k < top_k; ++k) ++counts[+row[k]];
                          continue;
                        }
                        size_t routed = 0;
                        for (size_t k = 0; k < top_k; ++k) {
                          if (+row[k] < 0) continue;
                          ++counts[+row[k]];
                          ++routed;
                        }
                        if (routed == 0) ++tally.unrouted[l];
                        if (routed > 0 && routed < top_k) ++tally.partly_routed_rows;
                      }
                    }
                    return true;
                  });
}

void RoutedIdCounter::Add(absl::string_view ids, RoutingTally& tally) const {
  WithType(layout_.type, [&](auto id) { AddAs<decltype(id)>(ids, tally); });
}

absl::Status RoutedIdCounter::Count(absl::string_view ids, const RowOrigin& origin,
                                    RoutingTally& tally) const {
  if (absl::Status status = Check(ids, origin); !status.ok()) return status;
  Add(ids, tally);
  return absl::OkStatus();
}

bool RoutedIdCounter::MostRowsIdentical(absl::string_view ids) const {
  constexpr size_t kLeast = 8;
  const size_t tokens = ids.size() / bytes_per_token_;
  auto row = [&](size_t token) { return ids.substr(token * bytes_per_token_, bytes_per_token_); };
  // Boyer and Moore's majority vote: only the winner can be over half.
  size_t winner = 0;
  size_t votes = 0;
  for (size_t token = 0; token < tokens; ++token) {
    if (votes == 0) winner = token;
    row(token) == row(winner) ? ++votes : --votes;
  }
  if (votes == 0) return false;
  size_t same = 0;
  for (size_t token = 0; token < tokens; ++token) same += row(token) == row(winner);
  if (same < kLeast || same * 2 <= tokens) return false;
  std::vector<uint32_t> counts(num_counted_layers() * size_t{1} * layout_.num_experts);
  std::vector<uint32_t> unrouted(num_counted_layers());
  RoutingTally tally{.counts = absl::MakeSpan(counts), .unrouted = absl::MakeSpan(unrouted)};
  Add(row(winner), tally);
  return !std::all_of(unrouted.begin(), unrouted.end(), [](uint32_t count) { return count == 1; });
}

}  // namespace relibra

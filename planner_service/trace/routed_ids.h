// Counts the experts that recorded tokens were routed to.
//
//   absl::StatusOr<RoutedIdCounter> counter = RoutedIdCounter::Create(
//       {.type = IdType::kUint8, .num_layers = 48, .top_k = 8, .num_experts = 128});
//   std::vector<uint32_t> counts(48 * 128), unrouted(48);
//   RoutingTally tally{.counts = absl::MakeSpan(counts), .unrouted = absl::MakeSpan(unrouted)};
//   absl::Status status = counter->Count(bytes, {.sequence = "q17"}, tally);
//
// Recorded ids are an array [tokens, layers, top_k] of little-endian integers, which need not be
// aligned. What they must keep:
// - an id is a logical expert, 0..num_experts-1; one above is an error (a physical id after EPLB
//   is the usual cause);
// - one token has no expert twice in one layer (a row of zeros in place of a missing route is the
//   usual cause);
// - a row (a token's ids in one layer) that is all below zero has no recorded route: padding, a
//   prefix that was not recorded. It adds no load and is counted as unrouted;
// - a row of which only some ids are below zero belongs to a token whose other choices the router
//   dropped (for lack of capacity): the valid ids are load, the others are neither load nor
//   missing. Such rows are counted, so that a caller can warn of them.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_ROUTED_IDS_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_ROUTED_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace relibra {

enum class IdType { kUint8, kInt8, kInt16, kUint16, kInt32, kInt64 };

size_t BytesOf(IdType type);
// As NumPy calls it: "uint8" …
absl::string_view NameOf(IdType type);
// OK when the type holds every id of so many experts, else INVALID_ARGUMENT.
absl::Status CheckIdType(IdType type, int num_experts);

struct RoutedIdLayout {
  IdType type = IdType::kUint8;
  int num_layers = 0;  // rows a token on the layer axis, dense layers' rows among them
  int top_k = 0;
  int num_experts = 0;
  // Which row of the layer axis each counted layer is, ascending. Empty: every row counts. The
  // rows of other (dense) layers are skipped, whatever they hold.
  std::vector<int> counted_rows = {};
  // The model's own numbers of the counted layers, for messages. Empty: 0, 1, …
  std::vector<uint32_t> layer_ids = {};
};

// Where some rows come from, for messages.
struct RowOrigin {
  absl::string_view sequence = {};  // empty: messages name no sequence
  uint64_t token_offset = 0;        // position in the sequence of the first row
};

// What counting adds to.
struct RoutingTally {
  absl::Span<uint32_t> counts;      // [counted layers, num_experts], (token, choice) pairs
  absl::Span<uint32_t> unrouted;    // [counted layers], tokens without a recorded route
  uint64_t partly_routed_rows = 0;  // (token, layer) rows with some ids below zero
};

// Immutable once made; threads may share one.
class RoutedIdCounter {
 public:
  // INVALID_ARGUMENT naming the field when a size is below 1 or too large, the type too small for
  // num_experts, or counted_rows or layer_ids do not fit.
  static absl::StatusOr<RoutedIdCounter> Create(RoutedIdLayout layout);

  const RoutedIdLayout& layout() const { return layout_; }
  int num_counted_layers() const { return static_cast<int>(layout_.counted_rows.size()); }
  size_t bytes_per_token() const { return bytes_per_token_; }

  // Check, then Add. On an error nothing is added.
  absl::Status Count(absl::string_view ids, const RowOrigin& origin, RoutingTally& tally) const;

  // OK when `ids` are whole tokens (fewer than 2^32) that keep the rules above. INVALID_ARGUMENT
  // naming sequence, token, layer and slot otherwise. About 2 GB/s of uint8 ids a core.
  absl::Status Check(absl::string_view ids, const RowOrigin& origin) const;

  // Adds ids that Check found good; counts wrap above 2^32 - 1, which one sequence cannot reach.
  void Add(absl::string_view ids, RoutingTally& tally) const;

  // True when over half of the tokens, and at least 8, have the same ids in every layer, as warm-up
  // and graph-capture passes have. Tokens without any route do not count as such.
  bool MostRowsIdentical(absl::string_view ids) const;

 private:
  explicit RoutedIdCounter(RoutedIdLayout layout);

  template <typename Id>
  void BuildMasks();
  template <typename Id>
  absl::Status CheckAs(absl::string_view ids, const RowOrigin& origin) const;
  // Whether a tile of whole tokens breaks a rule. May be true of good tiles, never false of bad.
  template <typename Id>
  bool Suspicious(const Id* ids, size_t count) const;
  // Finds the first breach, exactly.
  template <typename Id>
  absl::Status CheckRows(const Id* ids, size_t tokens, const RowOrigin& origin) const;
  template <typename Id>
  void AddAs(absl::string_view ids, RoutingTally& tally) const;

  RoutedIdLayout layout_;
  size_t ids_per_token_ = 0;
  size_t bytes_per_token_ = 0;
  size_t tokens_per_tile_ = 0;
  // [top_k][ids a tile], as the id type; all ones where the id at distance d to the right is in the
  // same counted row. See Suspicious.
  std::vector<char> masks_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_ROUTED_IDS_H_

// Counting is one load, one add and one store an id; what slows it down is (1) the check of each id
// and (2) an add that must wait for the store before it when neighbouring ids are equal.
// (1) 8-bit ids index a table of 256 bins without any check, which are told apart at the end; wider
//     ids are first clamped to 16-bit bins by a loop that the compiler turns into SIMD code.
// (2) Where rows are short, neighbouring ids go to four different sets of tables.
#include "kernels/load_histogram_cpu.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/routing_element.h"
#include "kernels/simd_clones.h"

namespace relibra {
namespace {

constexpr int64_t kBlockIds = 4096;  // ids clamped at a time; their bins stay in the L1 cache
constexpr int64_t kShortRow = 32;    // ids of a token, below which tables are multiplied
constexpr int64_t kTableSets = 4;

// Bins of a table: experts, then one for "not routed", then one for "invalid".
template <typename Id>
inline void ClampToBins(const Id* ids, int64_t count, int64_t experts, uint16_t* bins) {
  // A negative id is a huge unsigned one: one minimum covers both ends, then the sign picks the
  // bin.
  using Unsigned = std::make_unsigned_t<Id>;
  const auto limit = static_cast<Unsigned>(experts);  // kMaxExperts fits every type used here
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<Unsigned>(ids[i]);
    const auto clamped = static_cast<uint16_t>(std::min(id, limit));
    const bool invalid = ids[i] >= 0 && id >= limit;
    bins[i] = static_cast<uint16_t>(clamped + (invalid ? 1 : 0));
  }
}

RELIBRA_SIMD_CLONES void ClampU16(const uint16_t* ids, int64_t count, int64_t experts,
                                  uint16_t* bins) {
  ClampToBins(ids, count, experts, bins);
}
RELIBRA_SIMD_CLONES void ClampI16(const int16_t* ids, int64_t count, int64_t experts,
                                  uint16_t* bins) {
  ClampToBins(ids, count, experts, bins);
}
RELIBRA_SIMD_CLONES void ClampI32(const int32_t* ids, int64_t count, int64_t experts,
                                  uint16_t* bins) {
  ClampToBins(ids, count, experts, bins);
}
RELIBRA_SIMD_CLONES void ClampI64(const int64_t* ids, int64_t count, int64_t experts,
                                  uint16_t* bins) {
  ClampToBins(ids, count, experts, bins);
}

// [sets][layers][width] counts under construction.
class Tables {
 public:
  Tables(const RoutedIds& ids, int64_t width)
      : width_(width),
        layers_(ids.layers),
        top_k_(ids.top_k),
        sets_(ids.layers * ids.top_k < kShortRow ? kTableSets : 1),
        bins_(static_cast<size_t>(sets_ * layers_ * width)) {
    if (sets_ == 1) return;
    for (int64_t i = 0; i < layers_ * top_k_ * kTableSets; ++i) {
      table_of_id_.push_back((i % kTableSets * layers_ + i / top_k_ % layers_) * width_);
    }
  }

  // Counts `tokens` whole rows of bins.
  template <typename Bin>
  void Add(const Bin* bins, int64_t tokens) {
    if (sets_ == 1) {
      for (int64_t t = 0; t < tokens; ++t) AddLayers(bins + t * layers_ * top_k_, 0, layers_);
      return;
    }
    // Four rows at a time, each id in the next set of tables.
    const auto pattern = static_cast<int64_t>(table_of_id_.size());
    const int64_t count = tokens * layers_ * top_k_;
    for (int64_t begin = 0; begin < count; begin += pattern) {
      const int64_t length = std::min(pattern, count - begin);
      for (int64_t i = 0; i < length; ++i) {
        ++bins_[static_cast<size_t>(table_of_id_[static_cast<size_t>(i)] + bins[begin + i])];
      }
    }
  }

  // Counts the ids of layers [begin, end) of one token, in the first set of tables.
  template <typename Bin>
  void AddLayers(const Bin* bins, int64_t begin, int64_t end) {
    uint32_t* table = bins_.data() + begin * width_;
    if (top_k_ == 8) {  // the common case, for the compiler to unroll
      for (int64_t l = begin; l < end; ++l, table += width_, bins += 8) {
        for (int k = 0; k < 8; ++k) ++table[bins[k]];
      }
      return;
    }
    for (int64_t l = begin; l < end; ++l, table += width_, bins += top_k_) {
      for (int64_t k = 0; k < top_k_; ++k) ++table[bins[k]];
    }
  }

  uint32_t Count(int64_t layer, int64_t bin) const {
    uint32_t sum = 0;
    for (int64_t s = 0; s < sets_; ++s) {
      sum += bins_[static_cast<size_t>((s * layers_ + layer) * width_ + bin)];
    }
    return sum;
  }

 private:
  int64_t width_;
  int64_t layers_;
  int64_t top_k_;
  int64_t sets_;
  std::vector<uint32_t> bins_;
  std::vector<int64_t> table_of_id_;  // for four short rows: where the table of each id begins
};

// Ids of 8 bits are bins already; `Id` gives them their sign back.
template <typename Id>
void CountNarrow(const RoutedIds& ids, int64_t experts, uint32_t* counts, uint64_t* invalid) {
  constexpr int64_t kBins = 256;
  Tables tables(ids, kBins);
  tables.Add(static_cast<const uint8_t*>(ids.data), ids.tokens);
  for (int64_t l = 0; l < ids.layers; ++l) {
    for (int64_t bin = 0; bin < kBins; ++bin) {
      const int64_t expert = ClassifyId(static_cast<Id>(bin), experts);
      if (expert >= 0) {
        counts[l * experts + expert] = tables.Count(l, bin);
      } else if (expert == kInvalidId) {
        *invalid += tables.Count(l, bin);
      }
    }
    for (int64_t e = kBins; e < experts; ++e) counts[l * experts + e] = 0;
    if constexpr (std::is_signed_v<Id>) {
      for (int64_t e = kBins / 2; e < std::min(experts, kBins); ++e) counts[l * experts + e] = 0;
    }
  }
}

template <typename Id, void (*clamp)(const Id*, int64_t, int64_t, uint16_t*)>
void CountWide(const RoutedIds& ids, int64_t experts, uint32_t* counts, uint64_t* invalid) {
  Tables tables(ids, experts + 2);
  std::array<uint16_t, kBlockIds> bins;
  const Id* data = static_cast<const Id*>(ids.data);
  const int64_t row = ids.layers * ids.top_k;
  if (row <= kBlockIds) {
    const int64_t block_tokens = kBlockIds / row;
    for (int64_t t = 0; t < ids.tokens; t += block_tokens) {
      const int64_t tokens = std::min(block_tokens, ids.tokens - t);
      clamp(data + t * row, tokens * row, experts, bins.data());
      tables.Add(bins.data(), tokens);
    }
  } else {
    const int64_t block_layers = kBlockIds / ids.top_k;
    for (int64_t t = 0; t < ids.tokens; ++t) {
      for (int64_t l = 0; l < ids.layers; l += block_layers) {
        const int64_t end = std::min(l + block_layers, ids.layers);
        clamp(data + t * row + l * ids.top_k, (end - l) * ids.top_k, experts, bins.data());
        tables.AddLayers(bins.data(), l, end);
      }
    }
  }
  for (int64_t l = 0; l < ids.layers; ++l) {
    for (int64_t e = 0; e < experts; ++e) counts[l * experts + e] = tables.Count(l, e);
    *invalid += tables.Count(l, experts + 1);
  }
}

// Only looked for when there is one.
uint64_t FirstInvalid(const RoutedIds& ids, int64_t experts) {
  int64_t i = 0;
  while (ClassifyId(LoadId(ids.data, ids.type, i), experts) != kInvalidId) ++i;
  return static_cast<uint64_t>(i);
}

}  // namespace

void LoadHistogramOnCpu(const RoutedIds& ids, int64_t experts, uint32_t* counts, IdReport* report) {
  *report = IdReport{};
  if (ids.layers == 0) return;
  switch (ids.type) {
    case IdType::kU8:
      CountNarrow<uint8_t>(ids, experts, counts, &report->invalid);
      break;
    case IdType::kI8:
      CountNarrow<int8_t>(ids, experts, counts, &report->invalid);
      break;
    case IdType::kU16:
      CountWide<uint16_t, ClampU16>(ids, experts, counts, &report->invalid);
      break;
    case IdType::kI16:
      CountWide<int16_t, ClampI16>(ids, experts, counts, &report->invalid);
      break;
    case IdType::kI32:
      CountWide<int32_t, ClampI32>(ids, experts, counts, &report->invalid);
      break;
    case IdType::kI64:
      CountWide<int64_t, ClampI64>(ids, experts, counts, &report->invalid);
      break;
  }
  if (report->invalid > 0) report->first_position = FirstInvalid(ids, experts);
}

}  // namespace relibra

// The per-element logic of permute, combine and combine's gradient.
#ifndef RELIBRA_KERNELS_PERMUTE_ELEMENT_H_
#define RELIBRA_KERNELS_PERMUTE_ELEMENT_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/float_group.h"
#include "kernels/host_device.h"

namespace relibra {

// ---- Permute: rows are bytes, moved in words of 16, 4, 2 or 1 bytes.

struct alignas(16) Word16 {
  uint32_t part[4];
};

struct PermuteArgs {
  const int32_t* row_of_choice;  // [tokens, top_k]
  int64_t tokens;
  int32_t top_k;
  int32_t words;       // of a row
  const void* source;  // [tokens, words]
  void* target;        // [rows, words]
};

template <typename Word>
RELIBRA_HOST_DEVICE void PermuteWord(const PermuteArgs& args, int64_t token, int32_t word) {
  const Word value = static_cast<const Word*>(args.source)[token * args.words + word];
  const int32_t* rows = args.row_of_choice + token * args.top_k;
  for (int32_t k = 0; k < args.top_k; ++k) {
    const int64_t row = rows[k];
    if (row >= 0) static_cast<Word*>(args.target)[row * args.words + word] = value;
  }
}

// ---- Rows of numbers.

struct RowsView {
  const void* data;
  FloatType type;
  const float* scales;  // null unless fp8
  int32_t scale_block;
  int32_t scales_per_row;
};

// The scale of element `column` of a row; a group shares one when scale_block % kGroup == 0.
RELIBRA_HOST_DEVICE float ScaleOf(const RowsView& rows, int64_t row, int32_t column) {
  return rows.scales[row * rows.scales_per_row + column / rows.scale_block];
}

RELIBRA_HOST_DEVICE float ValueAt(const RowsView& rows, int32_t hidden, int64_t row,
                                  int32_t column) {
  const float value = LoadElement(rows.data, rows.type, row * hidden + column);
  return rows.scales == nullptr ? value : value * ScaleOf(rows, row, column);
}

template <FloatType type>
RELIBRA_HOST_DEVICE const void* GroupAddress(const void* data, int32_t hidden, int64_t row,
                                             int32_t group) {
  return static_cast<const char*>(data) +
         (row * hidden + int64_t{group} * kGroup) * kElementBytes<type>;
}

template <FloatType type>
RELIBRA_HOST_DEVICE void* GroupAddress(void* data, int32_t hidden, int64_t row, int32_t group) {
  return static_cast<char*>(data) + (row * hidden + int64_t{group} * kGroup) * kElementBytes<type>;
}

// ---- Combine

struct CombineArgs {
  const int32_t* row_of_choice;  // [tokens, top_k]
  const float* weights;          // [tokens, top_k] or null
  int64_t tokens;
  int32_t top_k;
  int32_t hidden;
  RowsView rows;
  void* out;  // [tokens, hidden]
  FloatType out_type;
};

// Choices whose loads are under way together, to hide the latency of memory.
inline constexpr int kCombineBatch = 4;

// Group `group` of token `token`; everything aligned, hidden % kGroup == 0.
template <FloatType in, FloatType out>
RELIBRA_HOST_DEVICE void CombineGroup(const CombineArgs& args, int64_t token, int32_t group) {
  float sum[kGroup] = {};
  for (int32_t k0 = 0; k0 < args.top_k; k0 += kCombineBatch) {
    RawGroup<in> raw[kCombineBatch];
    float weight[kCombineBatch];
    float scale[kCombineBatch];
    bool present[kCombineBatch];
    RELIBRA_UNROLL
    for (int j = 0; j < kCombineBatch; ++j) {
      const int64_t choice = token * args.top_k + k0 + j;
      const int64_t row = k0 + j < args.top_k ? args.row_of_choice[choice] : -1;
      present[j] = row >= 0;
      if (!present[j]) continue;
      raw[j] = LoadGroup<in>(GroupAddress<in>(args.rows.data, args.hidden, row, group));
      weight[j] = args.weights == nullptr ? 1.0f : args.weights[choice];
      if constexpr (in == FloatType::kFp8E4m3) scale[j] = ScaleOf(args.rows, row, group * kGroup);
    }
    RELIBRA_UNROLL
    for (int j = 0; j < kCombineBatch; ++j) {
      if (!present[j]) continue;
      RELIBRA_UNROLL
      for (int i = 0; i < kGroup; ++i) {
        float value = ElementOf<in>(raw[j], i);
        if constexpr (in == FloatType::kFp8E4m3) value *= scale[j];
        sum[i] += weight[j] * value;
      }
    }
  }
  StoreGroup<out>(GroupOf<out>(sum), GroupAddress<out>(args.out, args.hidden, token, group));
}

// The same for one element of any type and alignment.
RELIBRA_HOST_DEVICE void CombineElement(const CombineArgs& args, int64_t token, int32_t column) {
  float sum = 0;
  for (int32_t k = 0; k < args.top_k; ++k) {
    const int64_t choice = token * args.top_k + k;
    const int64_t row = args.row_of_choice[choice];
    if (row < 0) continue;
    const float weight = args.weights == nullptr ? 1.0f : args.weights[choice];
    sum += weight * ValueAt(args.rows, args.hidden, row, column);
  }
  StoreElement(sum, args.out, args.out_type, token * args.hidden + column);
}

// ---- CombineBackward

struct CombineBackwardArgs {
  const int32_t* row_of_choice;  // [tokens, top_k]
  const float* weights;          // [tokens, top_k] or null
  int64_t tokens;
  int32_t top_k;
  int32_t hidden;
  const void* grad_out;  // [tokens, hidden]
  FloatType grad_type;   // of grad_out and grad_rows
  RowsView rows;         // not read when grad_weights is null
  void* grad_rows;       // [rows, hidden]
  float* grad_weights;   // [tokens, top_k] or null
};

// Partial sums of a dot product: element c belongs to number (c / kGroup) % kDotLanes.
inline constexpr int kDotLanes = 32;

// One (token, choice)'s row, its weight, and where it stands.
struct ChoiceRow {
  int64_t token;
  int64_t row;
  float weight;
};

// Writes group `group` of the choice's gradient row; returns `dot` plus the group's part of the dot
// product. Everything aligned, hidden % kGroup == 0.
template <FloatType grad, FloatType in>
RELIBRA_HOST_DEVICE float CombineBackwardGroup(const CombineBackwardArgs& args,
                                               const ChoiceRow& choice, int32_t group, float dot) {
  const RawGroup<grad> grad_out =
      LoadGroup<grad>(GroupAddress<grad>(args.grad_out, args.hidden, choice.token, group));
  if (args.grad_weights != nullptr) {
    const RawGroup<in> raw =
        LoadGroup<in>(GroupAddress<in>(args.rows.data, args.hidden, choice.row, group));
    float scale = 1;
    if constexpr (in == FloatType::kFp8E4m3) {
      scale = ScaleOf(args.rows, choice.row, group * kGroup);
    }
    RELIBRA_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      float value = ElementOf<in>(raw, i);
      if constexpr (in == FloatType::kFp8E4m3) value *= scale;
      dot += ElementOf<grad>(grad_out, i) * value;
    }
  }
  float scaled[kGroup];
  RELIBRA_UNROLL
  for (int i = 0; i < kGroup; ++i) scaled[i] = choice.weight * ElementOf<grad>(grad_out, i);
  StoreGroup<grad>(GroupOf<grad>(scaled),
                   GroupAddress<grad>(args.grad_rows, args.hidden, choice.row, group));
  return dot;
}

// The same for a group of any type and alignment, which the end of the row may cut short.
RELIBRA_HOST_DEVICE float CombineBackwardElements(const CombineBackwardArgs& args,
                                                  const ChoiceRow& choice, int32_t group,
                                                  float dot) {
  const int32_t begin = group * kGroup;
  const int32_t end = begin + kGroup < args.hidden ? begin + kGroup : args.hidden;
  for (int32_t column = begin; column < end; ++column) {
    const float grad =
        LoadElement(args.grad_out, args.grad_type, choice.token * args.hidden + column);
    if (args.grad_weights != nullptr) {
      dot += grad * ValueAt(args.rows, args.hidden, choice.row, column);
    }
    StoreElement(choice.weight * grad, args.grad_rows, args.grad_type,
                 choice.row * args.hidden + column);
  }
  return dot;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_PERMUTE_ELEMENT_H_

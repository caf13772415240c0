// Moves hidden states between token order and destination order, forward and backward.
//
//   tokens [T, H] --Permute--> rows [N, H] --all-to-all, experts, all-to-all--> rows [N, H]
//                                                            --Combine--> tokens [T, H]
//
// forward                               its gradient
// Permute: row[r(t,k)] = x[t]           dx[t] = sum over k of drow[r(t,k)]:
//                                         Combine without weights
// Combine: y[t] = sum_k w[t,k] row[..]  drow[r(t,k)] = w[t,k] dy[t], dw[t,k] = dy[t] . row[r(t,k)]:
//                                         CombineBackward
//
// r(t,k) is row_of_choice of destination_order.h; T = tokens, K = top_k, H = hidden, N = routed
// choices <= T x K.
#ifndef RELIBRA_KERNELS_PERMUTE_H_
#define RELIBRA_KERNELS_PERMUTE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/executor.h"
#include "kernels/routing_limits.h"

namespace relibra {

// Rows [rows, hidden] to read. kFp8E4m3 has scales [rows, ceil(hidden / scale_block)], fp32:
// element c of a row stands for its fp8 value x scales[row][c / scale_block]; other types have
// none. Rows of a multiple of 16 bytes at 16-byte aligned addresses move in 16-byte accesses;
// others are correct but slow.
struct FloatRows {
  const void* data = nullptr;
  FloatType type = FloatType::kBf16;
  const float* scales = nullptr;
  int64_t scale_block = 128;
};

struct MutableFloatRows {
  void* data = nullptr;
  FloatType type = FloatType::kBf16;
  float* scales = nullptr;
  int64_t scale_block = 128;
};

// Where the rows of each token are.
struct RowMap {
  const int32_t* row_of_choice = nullptr;  // [tokens, top_k]; below 0: no such row
  int64_t tokens = 0;                      // T
  int64_t top_k = 1;                       // K, 1..kMaxTopK
  int64_t hidden = 0;                      // H, in elements, at most kMaxHidden
};

// All three: INVALID_ARGUMENT for null pointers (rows may be null when T x K is 0), a negative
// dimension, top_k outside 1..kMaxTopK, T x K >= 2^31, a type that the call does not take, fp8
// without scales, scales without fp8, scale_block < 1, pointers not aligned to their element.
// Outputs must not overlap inputs. Rows in row_of_choice must lie in the buffers and, for Permute
// and CombineBackward, be distinct, as BuildDestinationOrder leaves them; a buffer of T x K rows
// always holds them.

// rows[r(t,k)] = tokens[t], and the scales with it; types and scale_block of both must be equal.
// Rows that no choice names are not written. Each token is read once and written to all its rows:
// (T + N) x H elements are moved.
absl::Status Permute(const Executor& executor, const RowMap& map, const FloatRows& tokens,
                     const MutableFloatRows& rows);

// out[t] = sum over k, ascending, of weights[t,k] x rows[r(t,k)]; summed in fp32 from 0, rounded
// once to out's type (nearest, ties to even). All of out is written: zeros for a token without
// rows.
// weights: fp32 [T, K], or null for all ones. out.type: kBf16, kFp16 or kFp32.
absl::Status Combine(const Executor& executor, const RowMap& map, const FloatRows& rows,
                     const float* weights, const MutableFloatRows& out);

// The gradient of Combine:
//   grad_rows[r(t,k)] = weights[t,k] x grad_out[t], in grad_out's type;
//   grad_weights[t,k] = sum over c of grad_out[t][c] x rows[r(t,k)][c], in fp32; 0 without a row.
// rows: what Combine read. weights: null for all ones. grad_out and grad_rows: the same type,
// kBf16, kFp16 or kFp32. grad_weights: fp32 [T, K], or null: then rows are not read and rows.data
// may be null. The dot product's order is fixed: element c is added to partial sum (c / 8) % 32 in
// ascending order, and the 32 partial sums are added as a binary tree (i + 16, i + 8, …).
absl::Status CombineBackward(const Executor& executor, const RowMap& map, const FloatRows& grad_out,
                             const FloatRows& rows, const float* weights,
                             const MutableFloatRows& grad_rows, float* grad_weights);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_PERMUTE_H_

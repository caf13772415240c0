#include <algorithm>
#include <bit>

#include "kernels/cuda_launch.h"
#include "kernels/float_type_switch.h"
#include "kernels/permute_element.h"

namespace relibra::cuda {
namespace {

// A block takes `rows` whole rows (y), `columns` threads a row (x): short rows share a block.
struct BlockShape {
  unsigned columns;
  unsigned rows;
};

BlockShape BlockShapeOf(int64_t columns) {
  const auto width = static_cast<unsigned>(std::clamp<int64_t>(columns, 1, kBlockThreads));
  const unsigned rounded = std::bit_ceil(width);
  return {rounded, kBlockThreads / rounded};
}

// kernel(args) for every (token, column); `columns` only shapes the block.
template <typename Args>
cudaError_t LaunchOverTokens(void (*kernel)(Args), const Args& args, int64_t columns,
                             CUstream_st* stream) {
  const BlockShape shape = BlockShapeOf(columns);
  return Launch(kernel, CeilDivide(args.tokens, shape.rows), dim3(shape.columns, shape.rows),
                stream, args);
}

__device__ __forceinline__ int64_t TokenOfThread() {
  return int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}

template <typename Word>
__global__ void __launch_bounds__(kBlockThreads) PermuteKernel(const PermuteArgs args) {
  const int64_t token = TokenOfThread();
  if (token >= args.tokens) return;
  for (int32_t word = threadIdx.x; word < args.words; word += blockDim.x) {
    PermuteWord<Word>(args, token, word);
  }
}

template <FloatType in, FloatType out>
__global__ void __launch_bounds__(kBlockThreads) CombineKernel(const CombineArgs args) {
  const int64_t token = TokenOfThread();
  if (token >= args.tokens) return;
  for (int32_t group = threadIdx.x; group < args.hidden / kGroup; group += blockDim.x) {
    CombineGroup<in, out>(args, token, group);
  }
}

// Room for 64 registers (4 blocks a multiprocessor): left to itself ptxas spills for sm_100.
__global__ void __launch_bounds__(kBlockThreads, 4) CombineAnyKernel(const CombineArgs args) {
  const int64_t token = TokenOfThread();
  if (token >= args.tokens) return;
  for (int32_t column = threadIdx.x; column < args.hidden; column += blockDim.x) {
    CombineElement(args, token, column);
  }
}

// One warp a choice: its lanes are the partial sums, so no block-wide exchange is needed. Warps of
// a block serve neighbouring choices, mostly of one token, whose gradient they find in the cache.
template <typename GroupFunction>
__device__ __forceinline__ void BackwardOfWarp(const CombineBackwardArgs& args,
                                               const GroupFunction& group_function) {
  static_assert(kDotLanes == kWarpThreads);
  const int64_t c = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (c >= args.tokens * args.top_k) return;  // the whole warp
  float dot = 0;
  const int32_t row = args.row_of_choice[c];
  if (row >= 0) {
    const ChoiceRow choice = {c / args.top_k, row,
                              args.weights == nullptr ? 1.0f : args.weights[c]};
    const int32_t groups = (args.hidden + kGroup - 1) / kGroup;
    for (int32_t group = threadIdx.x; group < groups; group += kWarpThreads) {
      dot = group_function(choice, group, dot);
    }
  }
  if (args.grad_weights == nullptr) return;
  for (int step = kDotLanes / 2; step > 0; step /= 2) {
    dot += __shfl_down_sync(0xffffffffu, dot, step);
  }
  if (threadIdx.x == 0) args.grad_weights[c] = dot;
}

template <FloatType grad, FloatType in>
__global__ void __launch_bounds__(kBlockThreads)
    CombineBackwardKernel(const CombineBackwardArgs args) {
  BackwardOfWarp(args, [&](const ChoiceRow& choice, int32_t group, float dot) {
    return CombineBackwardGroup<grad, in>(args, choice, group, dot);
  });
}

__global__ void __launch_bounds__(kBlockThreads)
    CombineBackwardAnyKernel(const CombineBackwardArgs args) {
  BackwardOfWarp(args, [&](const ChoiceRow& choice, int32_t group, float dot) {
    return CombineBackwardElements(args, choice, group, dot);
  });
}

cudaError_t LaunchOverChoices(void (*kernel)(CombineBackwardArgs), const CombineBackwardArgs& args,
                              CUstream_st* stream) {
  constexpr int kWarps = kBlockThreads / kWarpThreads;
  return Launch(kernel, CeilDivide(args.tokens * args.top_k, kWarps), dim3(kWarpThreads, kWarps),
                stream, args);
}

}  // namespace

int Permute(const PermuteArgs& args, int word_bytes, CUstream_st* stream) {
  if (args.words == 0) return cudaSuccess;
  switch (word_bytes) {
    case 16:
      return LaunchOverTokens(PermuteKernel<Word16>, args, args.words, stream);
    case 4:
      return LaunchOverTokens(PermuteKernel<uint32_t>, args, args.words, stream);
    case 2:
      return LaunchOverTokens(PermuteKernel<uint16_t>, args, args.words, stream);
    default:
      return LaunchOverTokens(PermuteKernel<uint8_t>, args, args.words, stream);
  }
}

int Combine(const CombineArgs& args, bool aligned, CUstream_st* stream) {
  if (args.hidden == 0) return cudaSuccess;
  if (!aligned) return LaunchOverTokens(CombineAnyKernel, args, args.hidden, stream);
  return WithFloatType(args.rows.type, [&](auto in) {
    return WithComputedFloatType(args.out_type, [&](auto out) {
      return LaunchOverTokens(CombineKernel<in(), out()>, args, args.hidden / kGroup, stream);
    });
  });
}

int CombineBackward(const CombineBackwardArgs& args, bool aligned, CUstream_st* stream) {
  if (!aligned) return LaunchOverChoices(CombineBackwardAnyKernel, args, stream);
  return WithComputedFloatType(args.grad_type, [&](auto grad) {
    return WithFloatType(args.rows.type, [&](auto in) {
      return LaunchOverChoices(CombineBackwardKernel<grad(), in()>, args, stream);
    });
  });
}

}  // namespace relibra::cuda

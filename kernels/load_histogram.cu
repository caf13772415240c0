// A block counts a run of tokens for a group of neighbouring layers in shared memory, then adds its
// counts to the result. CUB's histogram counts into one table; here there is one a layer, and the
// table of an id follows from where it stands.
#include <algorithm>

#include "kernels/cuda_launch.h"
#include "kernels/routing_element.h"
#include "kernels/routing_limits.h"

namespace relibra::cuda {
namespace {

// Enough ids a block that adding up its tables costs little beside reading them.
constexpr int64_t kMinIdsABlock = 16384;
// Enough blocks to fill any GPU; more would only add up more tables.
constexpr int64_t kMaxTokenRuns = 1024;

// How the ids are dealt to blocks: block b counts token run b / layer_groups, layer group b %
// layer_groups, so that blocks that run together read neighbouring memory.
struct Tiling {
  int64_t layer_groups;
  int32_t layers_a_group;
  int64_t tokens_a_run;
  int64_t token_runs;
};

Tiling TilingOf(const HistogramArgs& args) {
  Tiling tiling = {};
  tiling.layers_a_group =
      static_cast<int32_t>(std::min<int64_t>(args.layers, kMaxExperts / args.experts));
  tiling.layer_groups = CeilDivide(args.layers, tiling.layers_a_group);
  const int64_t ids_a_token = int64_t{tiling.layers_a_group} * args.top_k;
  tiling.tokens_a_run =
      std::max(CeilDivide(kMinIdsABlock, ids_a_token), CeilDivide(args.tokens, kMaxTokenRuns));
  tiling.token_runs = CeilDivide(args.tokens, tiling.tokens_a_run);
  return tiling;
}

template <typename Id>
__global__ void __launch_bounds__(kBlockThreads)
    LoadHistogramKernel(const HistogramArgs args, const Tiling tiling) {
  __shared__ uint32_t bins[kMaxExperts];  // [layers of the group, experts]
  const int64_t first_layer = blockIdx.x % tiling.layer_groups * tiling.layers_a_group;
  const int32_t layers =
      static_cast<int32_t>(min(int64_t{tiling.layers_a_group}, args.layers - first_layer));
  const int32_t used_bins = layers * args.experts;
  for (int32_t b = threadIdx.x; b < used_bins; b += kBlockThreads) bins[b] = 0;
  __syncthreads();

  const int64_t first_token = blockIdx.x / tiling.layer_groups * tiling.tokens_a_run;
  const int64_t tokens = min(tiling.tokens_a_run, args.tokens - first_token);
  const int32_t columns = layers * args.top_k;
  const int64_t row = args.layers * args.top_k;
  const int64_t begin = first_token * row + first_layer * args.top_k;
  // This thread's place within the run; stepping it costs no division.
  int64_t token = threadIdx.x / columns;
  int32_t column = static_cast<int32_t>(threadIdx.x % columns);
  const int32_t token_step = kBlockThreads / columns;
  const int32_t column_step = kBlockThreads % columns;
  while (token < tokens) {
    const int64_t position = begin + token * row + column;
    const int64_t expert = ClassifyId(static_cast<const Id*>(args.ids)[position], args.experts);
    if (expert >= 0) {
      atomicAdd(&bins[column / args.top_k * args.experts + expert], 1u);
    } else if (expert == kInvalidId) {
      ReportInvalid(args.report, position);
    }
    token += token_step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      ++token;
    }
  }
  __syncthreads();

  uint32_t* counts = args.counts + first_layer * args.experts;
  for (int32_t b = threadIdx.x; b < used_bins; b += kBlockThreads) {
    if (bins[b] != 0) atomicAdd(&counts[b], bins[b]);
  }
}

template <typename Id>
cudaError_t LaunchHistogram(const HistogramArgs& args, CUstream_st* stream) {
  const Tiling tiling = TilingOf(args);
  return Launch(LoadHistogramKernel<Id>, tiling.layer_groups * tiling.token_runs,
                dim3(kBlockThreads), stream, args, tiling);
}

}  // namespace

int LoadHistogram(const HistogramArgs& args, CUstream_st* stream) {
  cudaError_t error = ClearReport(args.report, stream);
  if (error != cudaSuccess || args.layers == 0) return error;
  error = cudaMemsetAsync(
      args.counts, 0, static_cast<size_t>(args.layers) * args.experts * sizeof(uint32_t), stream);
  if (error != cudaSuccess || args.tokens == 0) return error;
  switch (args.type) {
    case IdType::kU8:
      return LaunchHistogram<uint8_t>(args, stream);
    case IdType::kI8:
      return LaunchHistogram<int8_t>(args, stream);
    case IdType::kU16:
      return LaunchHistogram<uint16_t>(args, stream);
    case IdType::kI16:
      return LaunchHistogram<int16_t>(args, stream);
    case IdType::kI32:
      return LaunchHistogram<int32_t>(args, stream);
    case IdType::kI64:
      return LaunchHistogram<int64_t>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace relibra::cuda

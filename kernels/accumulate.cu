#include "kernels/accumulate_element.h"
#include "kernels/cuda_launch.h"

namespace relibra::cuda {
namespace {

// One thread a group; the last one may be cut short.
template <FloatType type>
__global__ void __launch_bounds__(kBlockThreads) AccumulateKernel(const AccumulateArgs args) {
  const int64_t begin = ThreadItem() * kGroup;
  if (begin + kGroup <= args.count) {
    AccumulateGroup<type>(args, begin / kGroup);
  } else {
    for (int64_t i = begin; i < args.count; ++i) AccumulateElement(args, i);
  }
}

__global__ void __launch_bounds__(kBlockThreads) AccumulateAnyKernel(const AccumulateArgs args) {
  const int64_t index = ThreadItem();
  if (index < args.count) AccumulateElement(args, index);
}

}  // namespace

int Accumulate(const AccumulateArgs& args, bool aligned, CUstream_st* stream) {
  if (!aligned) return LaunchOverItems(AccumulateAnyKernel, args.count, stream, args);
  const int64_t groups = CeilDivide(args.count, kGroup);
  if (args.type == FloatType::kBf16) {
    return LaunchOverItems(AccumulateKernel<FloatType::kBf16>, groups, stream, args);
  }
  return LaunchOverItems(AccumulateKernel<FloatType::kFp32>, groups, stream, args);
}

}  // namespace relibra::cuda

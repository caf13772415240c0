// The per-element logic of gradient accumulation.
#ifndef RELIBRA_KERNELS_ACCUMULATE_ELEMENT_H_
#define RELIBRA_KERNELS_ACCUMULATE_ELEMENT_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/float_group.h"
#include "kernels/host_device.h"

namespace relibra {

// Replicas that one pass over the home's gradient adds.
inline constexpr int kReplicasAPass = 16;

// Replicas whose loads are under way together, to hide the latency of memory.
inline constexpr int kReplicaBatch = 4;

struct AccumulateArgs {
  float* home;
  const void* replicas[kReplicasAPass];
  int32_t num_replicas;
  FloatType type;
  int64_t count;
};

// Elements 8 g .. 8 g + 7, all within count; everything aligned.
template <FloatType type>
RELIBRA_HOST_DEVICE void AccumulateGroup(const AccumulateArgs& args, int64_t group) {
  float* target = args.home + group * kGroup;
  const RawGroup<FloatType::kFp32> before = LoadGroup<FloatType::kFp32>(target);
  float sum[kGroup];
  RELIBRA_UNROLL
  for (int i = 0; i < kGroup; ++i) sum[i] = ElementOf<FloatType::kFp32>(before, i);
  for (int32_t r0 = 0; r0 < args.num_replicas; r0 += kReplicaBatch) {
    RawGroup<type> batch[kReplicaBatch];
    RELIBRA_UNROLL
    for (int32_t j = 0; j < kReplicaBatch; ++j) {
      if (r0 + j >= args.num_replicas) continue;
      batch[j] = LoadGroup<type>(static_cast<const char*>(args.replicas[r0 + j]) +
                                 group * kGroup * kElementBytes<type>);
    }
    RELIBRA_UNROLL
    for (int32_t j = 0; j < kReplicaBatch; ++j) {
      if (r0 + j >= args.num_replicas) continue;
      RELIBRA_UNROLL
      for (int i = 0; i < kGroup; ++i) sum[i] += ElementOf<type>(batch[j], i);
    }
  }
  StoreGroup<FloatType::kFp32>(GroupOf<FloatType::kFp32>(sum), target);
}

RELIBRA_HOST_DEVICE void AccumulateElement(const AccumulateArgs& args, int64_t index) {
  float sum = args.home[index];
  for (int32_t r = 0; r < args.num_replicas; ++r) {
    sum += LoadElement(args.replicas[r], args.type, index);
  }
  args.home[index] = sum;
}

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ACCUMULATE_ELEMENT_H_

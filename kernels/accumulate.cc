#include "kernels/accumulate.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/accumulate_element.h"
#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"

namespace relibra {
namespace {

absl::Status Check(const float* home, absl::Span<const void* const> replicas, FloatType type,
                   int64_t count) {
  if (type != FloatType::kBf16 && type != FloatType::kFp32) {
    return absl::InvalidArgumentError("type is neither bf16 nor fp32");
  }
  absl::Status status =
      CheckRange("count", count, 0, std::numeric_limits<int64_t>::max() / sizeof(float));
  if (!status.ok() || count == 0) return status;
  status = CheckPointer("home", home, alignof(float));
  for (size_t r = 0; status.ok() && r < replicas.size(); ++r) {
    status = CheckPointer(absl::StrCat("replicas[", r, "]"), replicas[r], SizeOf(type));
  }
  return status;
}

template <FloatType type>
void AccumulateAligned(const AccumulateArgs& args) {
  const int64_t groups = args.count / kGroup;
  for (int64_t g = 0; g < groups; ++g) AccumulateGroup<type>(args, g);
  for (int64_t i = groups * kGroup; i < args.count; ++i) AccumulateElement(args, i);
}

void AccumulateOnCpu(const AccumulateArgs& args, bool aligned) {
  if (!aligned) {
    for (int64_t i = 0; i < args.count; ++i) AccumulateElement(args, i);
  } else if (args.type == FloatType::kBf16) {
    AccumulateAligned<FloatType::kBf16>(args);
  } else {
    AccumulateAligned<FloatType::kFp32>(args);
  }
}

}  // namespace

absl::Status AccumulateGradients(const Executor& executor, float* home,
                                 absl::Span<const void* const> replicas, FloatType type,
                                 int64_t count) {
  if (absl::Status status = Check(home, replicas, type, count); !status.ok()) return status;
  if (count == 0) return absl::OkStatus();
  for (size_t first = 0; first < replicas.size(); first += kReplicasAPass) {
    const absl::Span<const void* const> pass = replicas.subspan(first, kReplicasAPass);
    AccumulateArgs args = {.home = home,
                           .replicas = {},
                           .num_replicas = static_cast<int32_t>(pass.size()),
                           .type = type,
                           .count = count};
    bool aligned = IsAligned(home, 16);
    for (size_t r = 0; r < pass.size(); ++r) {
      args.replicas[r] = pass[r];
      aligned = aligned && IsAligned(pass[r], 16);
    }
    if (executor.device == Device::kCpu) {
      AccumulateOnCpu(args, aligned);
    } else {
      absl::Status status = StatusOfCuda(cuda::Accumulate(args, aligned, executor.stream));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace relibra

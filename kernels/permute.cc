#include "kernels/permute.h"

#include "absl/strings/str_cat.h"
#include "kernels/argument_checks.h"
#include "kernels/cuda_launchers.h"
#include "kernels/permute_cpu.h"
#include "kernels/permute_element.h"

namespace relibra {
namespace {

absl::Status CheckMap(const RowMap& map) {
  absl::Status status = CheckRange("map.top_k", map.top_k, 1, kMaxTopK);
  if (status.ok()) status = CheckRange("map.tokens", map.tokens, 0, kMaxChoices / map.top_k);
  if (status.ok()) status = CheckRange("map.hidden", map.hidden, 0, kMaxHidden);
  if (status.ok() && map.tokens > 0) {
    status = CheckPointer("map.row_of_choice", map.row_of_choice, alignof(int32_t));
  }
  return status;
}

// Rows as one of the calls reads or writes them; `name` is the argument's.
absl::Status CheckRows(absl::string_view name, const RowMap& map, const void* data, FloatType type,
                       const float* scales, int64_t scale_block) {
  if (!IsValid(type))
    return absl::InvalidArgumentError(absl::StrCat(name, ".type is no FloatType"));
  if ((type == FloatType::kFp8E4m3) != (scales != nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, scales == nullptr ? " is fp8 without scales" : " has scales without fp8"));
  }
  absl::Status status = CheckRange(absl::StrCat(name, ".scale_block"), scale_block, 1, kMaxHidden);
  if (!status.ok() || map.tokens == 0 || map.hidden == 0) return status;
  status = CheckPointer(absl::StrCat(name, ".data"), data, SizeOf(type));
  if (status.ok() && scales != nullptr) {
    status = CheckPointer(absl::StrCat(name, ".scales"), scales, alignof(float));
  }
  return status;
}

absl::Status CheckComputed(absl::string_view name, FloatType type) {
  if (type != FloatType::kFp8E4m3) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".type is fp8, expected bf16, fp16 or fp32"));
}

absl::Status CheckWeights(absl::string_view name, const float* weights) {
  if (weights == nullptr) return absl::OkStatus();
  return CheckPointer(name, weights, alignof(float));
}

int32_t ScalesPerRow(int64_t hidden, int64_t scale_block) {
  return static_cast<int32_t>((hidden + scale_block - 1) / scale_block);
}

RowsView ViewOf(const FloatRows& rows, int64_t hidden) {
  return {.data = rows.data,
          .type = rows.type,
          .scales = rows.scales,
          .scale_block = static_cast<int32_t>(rows.scale_block),
          .scales_per_row = ScalesPerRow(hidden, rows.scale_block)};
}

// Whether rows may be read and written in groups.
bool GroupsAligned(const void* data, FloatType type, int64_t hidden) {
  return hidden % kGroup == 0 && IsAligned(data, type == FloatType::kFp8E4m3 ? 8 : 16);
}

bool GroupsAligned(const FloatRows& rows, int64_t hidden) {
  return GroupsAligned(rows.data, rows.type, hidden) &&
         (rows.scales == nullptr || rows.scale_block % kGroup == 0);
}

// Rows of `bytes` bytes each, in the widest words that their size and addresses allow.
absl::Status PermuteBytes(const Executor& executor, const RowMap& map, const void* source,
                          void* target, int64_t bytes) {
  int word_bytes = 16;
  for (const int narrower : {4, 2, 1}) {
    if (bytes % word_bytes == 0 && IsAligned(source, word_bytes) && IsAligned(target, word_bytes)) {
      break;
    }
    word_bytes = narrower;
  }
  const PermuteArgs args = {.row_of_choice = map.row_of_choice,
                            .tokens = map.tokens,
                            .top_k = static_cast<int32_t>(map.top_k),
                            .words = static_cast<int32_t>(bytes / word_bytes),
                            .source = source,
                            .target = target};
  if (executor.device == Device::kCpu) {
    PermuteOnCpu(args, word_bytes);
    return absl::OkStatus();
  }
  return StatusOfCuda(cuda::Permute(args, word_bytes, executor.stream));
}

}  // namespace

absl::Status Permute(const Executor& executor, const RowMap& map, const FloatRows& tokens,
                     const MutableFloatRows& rows) {
  absl::Status status = CheckMap(map);
  if (status.ok()) {
    status = CheckRows("tokens", map, tokens.data, tokens.type, tokens.scales, tokens.scale_block);
  }
  if (status.ok()) {
    status = CheckRows("rows", map, rows.data, rows.type, rows.scales, rows.scale_block);
  }
  if (status.ok() && (tokens.type != rows.type || tokens.scale_block != rows.scale_block)) {
    status = absl::InvalidArgumentError("tokens and rows differ in type or scale_block");
  }
  if (!status.ok()) return status;
  status = PermuteBytes(executor, map, tokens.data, rows.data,
                        map.hidden * static_cast<int64_t>(SizeOf(tokens.type)));
  if (status.ok() && tokens.scales != nullptr) {
    status = PermuteBytes(
        executor, map, tokens.scales, rows.scales,
        ScalesPerRow(map.hidden, tokens.scale_block) * static_cast<int64_t>(sizeof(float)));
  }
  return status;
}

absl::Status Combine(const Executor& executor, const RowMap& map, const FloatRows& rows,
                     const float* weights, const MutableFloatRows& out) {
  absl::Status status = CheckMap(map);
  if (status.ok()) {
    status = CheckRows("rows", map, rows.data, rows.type, rows.scales, rows.scale_block);
  }
  if (status.ok()) status = CheckComputed("out", out.type);
  if (status.ok()) {
    status = CheckRows("out", map, out.data, out.type, out.scales, out.scale_block);
  }
  if (status.ok()) status = CheckWeights("weights", weights);
  if (!status.ok()) return status;
  const CombineArgs args = {.row_of_choice = map.row_of_choice,
                            .weights = weights,
                            .tokens = map.tokens,
                            .top_k = static_cast<int32_t>(map.top_k),
                            .hidden = static_cast<int32_t>(map.hidden),
                            .rows = ViewOf(rows, map.hidden),
                            .out = out.data,
                            .out_type = out.type};
  const bool aligned =
      GroupsAligned(rows, map.hidden) && GroupsAligned(out.data, out.type, map.hidden);
  if (executor.device == Device::kCpu) {
    CombineOnCpu(args, aligned);
    return absl::OkStatus();
  }
  return StatusOfCuda(cuda::Combine(args, aligned, executor.stream));
}

absl::Status CombineBackward(const Executor& executor, const RowMap& map, const FloatRows& grad_out,
                             const FloatRows& rows, const float* weights,
                             const MutableFloatRows& grad_rows, float* grad_weights) {
  absl::Status status = CheckMap(map);
  if (status.ok()) status = CheckComputed("grad_out", grad_out.type);
  if (status.ok()) {
    status = CheckRows("grad_out", map, grad_out.data, grad_out.type, grad_out.scales,
                       grad_out.scale_block);
  }
  if (status.ok() && grad_weights != nullptr) {
    status = CheckRows("rows", map, rows.data, rows.type, rows.scales, rows.scale_block);
  }
  if (status.ok()) {
    status = CheckRows("grad_rows", map, grad_rows.data, grad_rows.type, grad_rows.scales,
                       grad_rows.scale_block);
  }
  if (status.ok() && grad_rows.type != grad_out.type) {
    status = absl::InvalidArgumentError("grad_rows and grad_out differ in type");
  }
  if (status.ok()) status = CheckWeights("weights", weights);
  if (status.ok()) status = CheckWeights("grad_weights", grad_weights);
  if (!status.ok()) return status;
  const CombineBackwardArgs args = {
      .row_of_choice = map.row_of_choice,
      .weights = weights,
      .tokens = map.tokens,
      .top_k = static_cast<int32_t>(map.top_k),
      .hidden = static_cast<int32_t>(map.hidden),
      .grad_out = grad_out.data,
      .grad_type = grad_out.type,
      // Without grad_weights the rows are not read, and any type will do.
      .rows = ViewOf(grad_weights == nullptr ? FloatRows{} : rows, map.hidden),
      .grad_rows = grad_rows.data,
      .grad_weights = grad_weights};
  const bool aligned = GroupsAligned(grad_out, map.hidden) &&
                       GroupsAligned(grad_rows.data, grad_rows.type, map.hidden) &&
                       (grad_weights == nullptr || GroupsAligned(rows, map.hidden));
  if (executor.device == Device::kCpu) {
    CombineBackwardOnCpu(args, aligned);
    return absl::OkStatus();
  }
  return StatusOfCuda(cuda::CombineBackward(args, aligned, executor.stream));
}

}  // namespace relibra

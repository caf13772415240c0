#include "planner_service/core/presets.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace relibra {
namespace {

constexpr ModelPreset kModels[] = {
    {.name = "qwen3-30b-a3b",
     .moe_layers = 48,
     .experts = 128,
     .top_k = 8,
     .hidden_size = 2048,
     .expert_hidden = 768},
    {.name = "qwen3-235b-a22b",
     .moe_layers = 94,
     .experts = 128,
     .top_k = 8,
     .hidden_size = 4096,
     .expert_hidden = 1536},
    {.name = "deepseek-v3",
     .moe_layers = 58,  // 61 layers, the first 3 dense
     .experts = 256,
     .top_k = 8,
     .hidden_size = 7168,
     .expert_hidden = 2048},
    {.name = "qwen3-next-80b-a3b",
     .moe_layers = 48,
     .experts = 512,
     .top_k = 10,
     .hidden_size = 2048,
     .expert_hidden = 512},
};

// Networks: one 400 Gbit/s adapter a GPU.
constexpr HardwarePreset kHardware[] = {
    {.name = "h100",
     .peak_flops = 989e12,
     .nvlink_bytes_second = 450e9,
     .network_bytes_second = 50e9},
    {.name = "h800",
     .peak_flops = 989e12,
     .nvlink_bytes_second = 200e9,
     .network_bytes_second = 50e9},
    {.name = "h200",
     .peak_flops = 989e12,
     .nvlink_bytes_second = 450e9,
     .network_bytes_second = 50e9},
    {.name = "b200",
     .peak_flops = 2250e12,
     .nvlink_bytes_second = 900e9,
     .network_bytes_second = 50e9},
};

template <typename Preset>
absl::StatusOr<Preset> Find(absl::Span<const Preset> presets, const char* kind,
                            absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Preset& preset : presets) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kind, ": expected one of ", absl::StrJoin(names, ", "), ", got \"", name, "\""));
}

}  // namespace

ExpertSizes ModelPreset::Sizes() const {
  const double parameters = 3.0 * hidden_size * expert_hidden;
  return {.weight_bytes = 2 * parameters,
          .gradient_bytes = 4 * parameters,
          .optimizer_bytes = 12 * parameters,
          .flops_per_token = 2 * parameters,
          .token_bytes = 2.0 * hidden_size};
}

GpuRates HardwarePreset::Rates() const {
  return {.gemm_flops = 0.45 * peak_flops,
          .in_node_bytes_second = 0.75 * nvlink_bytes_second,
          .cross_node_bytes_second = 0.85 * network_bytes_second};
}

absl::Span<const ModelPreset> ModelPresets() { return kModels; }
absl::Span<const HardwarePreset> HardwarePresets() { return kHardware; }

absl::StatusOr<ModelPreset> FindModel(absl::string_view name) {
  return Find(ModelPresets(), "model", name);
}
absl::StatusOr<HardwarePreset> FindHardware(absl::string_view name) {
  return Find(HardwarePresets(), "hardware", name);
}

}  // namespace relibra

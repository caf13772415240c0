// Models and GPUs by name, with the figures that their makers publish.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_PRESETS_H_
#define RELIBRA_PLANNER_SERVICE_CORE_PRESETS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/core/cost_model.h"

namespace relibra {

// The MoE part of a model, from its public configuration file.
struct ModelPreset {
  absl::string_view name;
  int moe_layers = 0;
  int experts = 0;        // routed experts a layer
  int top_k = 0;          // experts a token
  int hidden_size = 0;    // of a token's state
  int expert_hidden = 0;  // width of one expert (moe_intermediate_size)

  // Of SwiGLU experts (three matrices hidden_size x expert_hidden) trained with bfloat16 weights
  // and tokens, float32 gradients, and float32 master weights and two moments as optimizer state.
  ExpertSizes Sizes() const;
};

// One GPU and its links, from the maker's data sheets.
struct HardwarePreset {
  absl::string_view name;
  double peak_flops = 0;            // dense bfloat16 FLOPs a second
  double nvlink_bytes_second = 0;   // one direction (data sheets print both together)
  double network_bytes_second = 0;  // one direction, the GPU's share of its node's adapters

  // What is assumed to be reached of the peak: 45 % in grouped GEMMs, 75 % of NVLink and 85 % of
  // the network in all-to-all. Assumptions, not measurements.
  GpuRates Rates() const;
};

absl::Span<const ModelPreset> ModelPresets();
absl::Span<const HardwarePreset> HardwarePresets();

// INVALID_ARGUMENT naming the known names when there is none of this name.
absl::StatusOr<ModelPreset> FindModel(absl::string_view name);
absl::StatusOr<HardwarePreset> FindHardware(absl::string_view name);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_PRESETS_H_

#include "python/native/eplb.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "planner_service/core/static_placement.h"

namespace relibra {
namespace {

absl::StatusOr<int64_t> PlaceLayers(absl::Span<const double> weight, int layers,
                                    const StaticShape& shape,
                                    absl::Span<int64_t> physical_to_logical,
                                    absl::Span<int64_t> replica_count) {
  absl::StatusOr<StaticPlacer> placer = StaticPlacer::Create(shape);
  if (!placer.ok()) return placer.status();
  for (int l = 0; l < layers; ++l) {
    const size_t experts_at = size_t{1} * l * shape.experts;
    const absl::Status status =
        placer->Place(weight.subspan(experts_at, shape.experts),
                      physical_to_logical.subspan(size_t{1} * l * shape.physical, shape.physical),
                      replica_count.subspan(experts_at, shape.experts));
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", l, ", ", status.message()));
    }
  }
  if (replica_count.empty()) return 1;
  return *std::max_element(replica_count.begin(), replica_count.end());
}

}  // namespace
}  // namespace relibra

int32_t relibra_eplb_abi_version(void) { return RELIBRA_EPLB_ABI_VERSION; }

int64_t relibra_eplb_place(const double* weight, int32_t layers, int32_t experts, int32_t physical,
                           int32_t groups, int32_t nodes, int32_t gpus,
                           int64_t* physical_to_logical, int64_t* replica_count, char* error,
                           size_t error_size) {
  std::string message;
  try {
    const size_t num_weights = size_t{1} * layers * experts;
    const absl::StatusOr<int64_t> most_replicas = relibra::PlaceLayers(
        {weight, num_weights}, layers,
        {.experts = experts, .physical = physical, .groups = groups, .nodes = nodes, .gpus = gpus},
        {physical_to_logical, size_t{1} * layers * physical}, {replica_count, num_weights});
    if (most_replicas.ok()) return *most_replicas;
    message = std::string(most_replicas.status().message());
  } catch (const std::exception& exception) {  // out of memory must not cross the C boundary
    message = exception.what();
  }
  std::snprintf(error, error_size, "%s", message.c_str());
  return -1;
}

void relibra_eplb_invert(const int64_t* physical_to_logical, int32_t layers, int32_t experts,
                         int32_t physical, int64_t most_replicas, int64_t* logical_to_physical) {
  std::vector<int64_t> used(experts);
  std::fill(logical_to_physical, logical_to_physical + size_t{1} * layers * experts * most_replicas,
            -1);
  for (int l = 0; l < layers; ++l) {
    const int64_t* const slots = physical_to_logical + size_t{1} * l * physical;
    int64_t* const rows = logical_to_physical + size_t{1} * l * experts * most_replicas;
    std::fill(used.begin(), used.end(), 0);
    for (int slot = 0; slot < physical; ++slot) {
      const int64_t expert = slots[slot];
      rows[expert * most_replicas + used[expert]++] = slot;
    }
  }
}

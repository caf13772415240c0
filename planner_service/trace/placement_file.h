// Home placements in files, for `relibra plan --placement`: a plan (JSON or protobuf; its homes are
// the placement) or a plain JSON object
//
//   {"homeRank": [[0,0,1,1], [1,0,0,1]], "layerIds": [3, 4]}
//
// homeRank[l][e] is the rank that is home to expert e of layer l; layerIds (optional) are the
// model's own numbers of the rows, ascending.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_PLACEMENT_FILE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_PLACEMENT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// The homes [L][E] for a job with these layers, experts and topology. INVALID_ARGUMENT, starting
// with `name` (the file) and naming field and index, unless the file has exactly these layers (by
// number where it numbers them, else by count), num_experts experts in each, and E/P of them on
// every rank; of a plan also when its nodes or GPUs a node are others.
absl::StatusOr<Placement> ParsePlacement(absl::string_view bytes, absl::string_view name,
                                         const Topology& topology,
                                         absl::Span<const uint32_t> layer_ids, int num_experts);
absl::StatusOr<Placement> ReadPlacementFile(const std::string& path, const Topology& topology,
                                            absl::Span<const uint32_t> layer_ids, int num_experts);

// The plain form, a layer a line.
std::string PlacementToJson(const Placement& placement, absl::Span<const uint32_t> layer_ids);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_PLACEMENT_FILE_H_

// TensorRT-LLM's load-balancer YAML (see slot_map.h).
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_SLOT_YAML_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_SLOT_YAML_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner_service/trace/slot_map.h"

namespace relibra {

// Reads the part of YAML that such files use: num_slots, ep_size and layer_updates_per_iter with
// integers at the left margin; initial_global_assignments with layers indented below it, ascending,
// each with a list of num_slots ids in brackets (which may span lines) or, a line each, after "- ";
// comments, and empty lines. Anything else is refused. INVALID_ARGUMENT starts with `name` and
// names the line.
absl::StatusOr<SlotMap> ParseTensorRtSlots(absl::string_view text, absl::string_view name);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_SLOT_YAML_H_

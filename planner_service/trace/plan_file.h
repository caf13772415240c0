// Plans as files: the proto3 JSON mapping of relibra.v1.Plan, or the message's own bytes.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_PLAN_FILE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_PLAN_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "relibra/v1/plan.pb.h"

namespace relibra {

enum class PlanFormat {
  kJson,      // for people and other tools
  kProtobuf,  // a tenth of the size
};

// The proto3 JSON mapping, a micro-batch a line, ending in a newline. Fields stand there even when
// they are zero or empty, except "crossNode" (only where true) and "splitColumns" (only where not
// empty). As the mapping asks, 64-bit integers are strings.
std::string PlanToJson(const v1::Plan& plan);

// Reads either format; JSON is told by its first byte that is not white space, '{'.
// INVALID_ARGUMENT, starting with `name`, when the bytes are neither, or have fields unknown to
// JSON. Whether the plan makes sense is PlanFromMessage's matter.
absl::StatusOr<v1::Plan> ParsePlan(absl::string_view bytes, absl::string_view name);

// Writes a file, or reads one as ParsePlan does. Errors start with the path. RESOURCE_EXHAUSTED
// when the message is above protobuf's 2 GiB; JSON has no such limit.
absl::Status WritePlanFile(const v1::Plan& plan, PlanFormat format, const std::string& path);
absl::StatusOr<v1::Plan> ReadPlanFile(const std::string& path);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_PLAN_FILE_H_

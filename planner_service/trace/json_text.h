// JSON that people and other tools wrote, read strictly.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace relibra {

// Parses a JSON text whose outermost value is an object. INVALID_ARGUMENT, starting with `name`
// (the file), for anything that is not JSON (with line and column), for another outermost value,
// for nesting deeper than 64 and for a field that stands twice in one object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view name);

// INVALID_ARGUMENT naming the first field of `object` that is not one of `known`.
absl::Status CheckKnownFields(const nlohmann::json& object,
                              std::initializer_list<absl::string_view> known,
                              absl::string_view name);

// What kind of value it is, for messages: "a string", "a fraction", "null" …
absl::string_view KindOf(const nlohmann::json& value);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_

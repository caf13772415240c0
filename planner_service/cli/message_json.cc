#include "planner_service/cli/message_json.h"

#include <iostream>
#include <string>

#include "google/protobuf/util/json_util.h"

namespace relibra::cli {

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  std::cout << json;
  return absl::OkStatus();
}

}  // namespace relibra::cli

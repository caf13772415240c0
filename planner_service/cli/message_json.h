// Messages of the API as JSON on standard output.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_MESSAGE_JSON_H_
#define RELIBRA_PLANNER_SERVICE_CLI_MESSAGE_JSON_H_

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace relibra::cli {

// The proto3 JSON mapping, indented, fields of value zero included.
absl::Status PrintJson(const google::protobuf::Message& message);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_MESSAGE_JSON_H_

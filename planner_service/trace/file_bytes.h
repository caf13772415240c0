// Whole files in and out of memory.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_FILE_BYTES_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_FILE_BYTES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace relibra {

// The bytes of a file. NOT_FOUND when it does not exist; INVALID_ARGUMENT for a folder;
// PERMISSION_DENIED or UNAVAILABLE when it cannot be read. The message starts with the path.
absl::StatusOr<std::string> ReadFileBytes(const std::string& path);

// Creates or replaces a file. On an error, whose message starts with the path, a partly written
// file may remain.
absl::Status WriteFileBytes(const std::string& path, absl::string_view bytes);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_FILE_BYTES_H_

// Text of clients as messages and log lines show it.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_QUOTED_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_QUOTED_H_

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace relibra::server {

// In double quotes, with everything escaped that could end the quotes or the line.
inline std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_QUOTED_H_

#include "planner_service/cli/console.h"

#include <unistd.h>

#include <iostream>

namespace relibra::cli {
namespace {

std::string OneLine(absl::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

int ExitStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kExitBadInput;
    default:
      return kExitFailed;
  }
}

void PrintError(absl::string_view message) {
  std::cerr << "relibra: " << OneLine(message) << std::endl;
}

void PrintWarning(absl::string_view message) {
  std::cerr << "relibra: warning: " << OneLine(message) << std::endl;
}

Progress::Progress() : is_terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::Say(absl::string_view what) {
  if (!is_terminal_) return;
  std::cerr << "\r\033[K" << what << " …" << std::flush;
  shown_ = true;
}

void Progress::Clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace relibra::cli

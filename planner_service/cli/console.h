// What a command says, and with which exit status it ends. Results go to standard output,
// everything else to standard error.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_CONSOLE_H_
#define RELIBRA_PLANNER_SERVICE_CLI_CONSOLE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace relibra::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;    // the work failed
inline constexpr int kExitBadInput = 2;  // the words or the input are wrong

// 0 for OK, 2 for INVALID_ARGUMENT and NOT_FOUND, 1 for all others.
int ExitStatus(const absl::Status& status);

// "relibra: <message>" as one line on standard error, whatever the message holds.
void PrintError(absl::string_view message);
// "relibra: warning: <message>" likewise.
void PrintWarning(absl::string_view message);

// Tells a person at the terminal what a long command is at. Says nothing when standard error is not
// a terminal. One at a time.
class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Replaces the line.
  void Say(absl::string_view what);
  // Takes the line away, before other output.
  void Clear();

 private:
  const bool is_terminal_;
  bool shown_ = false;
};

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_CONSOLE_H_

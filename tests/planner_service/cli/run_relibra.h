// Runs the real `relibra` binary.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_CLI_RUN_RELIBRA_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_CLI_RUN_RELIBRA_H_

#include <string>
#include <vector>

namespace relibra::cli {

struct Ran {
  int exit_status = -1;  // -1: ended by a signal
  std::string out;
  std::string err;
};

// Runs it with these words and waits for its end.
Ran RunRelibra(const std::vector<std::string>& words);

// A file of this test's own, in a folder that is removed when the program ends.
std::string ScratchFile(const std::string& name);

}  // namespace relibra::cli

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_CLI_RUN_RELIBRA_H_

// A program that a test runs beside itself.
#ifndef RELIBRA_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define RELIBRA_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace relibra {

// Its standard output and error go to files in a directory of its own. Not thread-safe. The
// destructor kills the program if it still runs, and removes the files.
class ChildProcess {
 public:
  // words[0]: the program's path.
  explicit ChildProcess(const std::vector<std::string>& words);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for its end: the exit status, or 128 + the signal that ended it.
  int Wait();
  void Signal(int signal) const;
  // Waits until its standard error holds `text`; false when it ends without.
  bool AwaitError(const std::string& text);

  std::string Output() const;
  std::string Error() const;

 private:
  bool Ended();

  std::string directory_;
  pid_t pid_ = -1;
  int status_ = -1;
};

// A TCP port of the loopback interface that was free a moment ago.
int FreePort();

}  // namespace relibra

#endif  // RELIBRA_TESTS_INTEGRATION_CHILD_PROCESS_H_

// The real binary as a child process.
#ifndef RELIBRA_TESTS_PLANNER_SERVICE_SERVER_PLANNER_PROCESS_H_
#define RELIBRA_TESTS_PLANNER_SERVICE_SERVER_PLANNER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace relibra::server {

class PlannerProcess {
 public:
  // Starts relibra-planner with these words after its name.
  explicit PlannerProcess(const std::vector<std::string>& words);
  // Kills it when it still runs.
  ~PlannerProcess();

  PlannerProcess(const PlannerProcess&) = delete;
  PlannerProcess& operator=(const PlannerProcess&) = delete;

  // Reads its log until it serves; false when it ended instead. Sets the ports.
  bool WaitUntilServing();
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }

  void Signal(int signal);
  // Reads its output to the end and waits for it; the exit status, or -signal when one killed it.
  int WaitForExit();
  // All that it wrote to standard output and standard error so far read.
  const std::string& output() const { return output_; }

 private:
  bool ReadMore();

  pid_t pid_ = -1;
  int output_fd_ = -1;
  std::string output_;
  int port_ = 0;
  int metrics_port_ = 0;
};

// Gets a path over HTTP from a loopback port; the whole answer with its header.
std::string HttpGet(int port, const std::string& path);

}  // namespace relibra::server

#endif  // RELIBRA_TESTS_PLANNER_SERVICE_SERVER_PLANNER_PROCESS_H_

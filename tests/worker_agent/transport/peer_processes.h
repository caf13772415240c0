// Runs the ranks of a test as processes of their own: the test's binary executes itself with
// "--peer". Parent and children speak over a socket pair: a child hands in its transport's address
// and gets everybody's.
#ifndef RELIBRA_TESTS_WORKER_AGENT_TRANSPORT_PEER_PROCESSES_H_
#define RELIBRA_TESTS_WORKER_AGENT_TRANSPORT_PEER_PROCESSES_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace relibra::transport {

// What a child is told on its command line.
struct PeerArguments {
  std::string scenario = {};
  std::string transports = {};
  int rank = 0;
  int size = 1;
  bool peer_error_handling = true;
};

// In the child: hands in `address` and returns the addresses of all ranks.
std::vector<std::string> ExchangeAddresses(const PeerArguments& arguments,
                                           const std::string& address);
// In the child: blocks until the parent has let this rank go on (see PeerProcesses::Release), and
// tells the parent that this rank has come to a point.
void WaitForParent();
void TellParent();

// In main: true when this process is a child; then `arguments` are filled in.
bool IsPeer(int argc, char** argv, PeerArguments& arguments);

// In the parent: starts `size` children, exchanges their addresses. The destructor kills what runs.
class PeerProcesses {
 public:
  explicit PeerProcesses(const PeerArguments& common);
  ~PeerProcesses();
  PeerProcesses(const PeerProcesses&) = delete;
  PeerProcesses& operator=(const PeerProcesses&) = delete;

  // Passes addresses on, once every child has handed in its own.
  void PassAddresses();
  // Blocks until the child has called TellParent.
  void AwaitChild(int rank);
  void Release(int rank);
  // SIGKILL, and waits for its end.
  void Kill(int rank);
  // Waits for the child's end: its exit status, or -1 when a signal ended it.
  int Join(int rank);

 private:
  std::vector<pid_t> pids_;
  std::vector<int> sockets_;
};

}  // namespace relibra::transport

#endif  // RELIBRA_TESTS_WORKER_AGENT_TRANSPORT_PEER_PROCESSES_H_

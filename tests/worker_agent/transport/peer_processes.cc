#include "tests/worker_agent/transport/peer_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace relibra::transport {
namespace {

constexpr int kChildSocket = 3;

void ReadAll(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, static_cast<char*>(data) + done, bytes - done);
    if (n <= 0) {
      std::fprintf(stderr, "peer processes: the other end closed its socket\n");
      _exit(70);
    }
    done += n;
  }
}

void WriteAll(int fd, const void* data, size_t bytes) {
  // A child that died is noticed by Join, not by a signal here.
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = send(fd, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
    if (n <= 0) return;
    done += n;
  }
}

void WriteString(int fd, const std::string& text) {
  const uint64_t length = text.size();
  WriteAll(fd, &length, sizeof(length));
  WriteAll(fd, text.data(), text.size());
}

std::string ReadString(int fd) {
  uint64_t length = 0;
  ReadAll(fd, &length, sizeof(length));
  std::string text(length, '\0');
  ReadAll(fd, text.data(), length);
  return text;
}

}  // namespace

std::vector<std::string> ExchangeAddresses(const PeerArguments& arguments,
                                           const std::string& address) {
  WriteString(kChildSocket, address);
  std::vector<std::string> all(arguments.size);
  for (std::string& one : all) one = ReadString(kChildSocket);
  return all;
}

void WaitForParent() {
  char byte = 0;
  ReadAll(kChildSocket, &byte, 1);
}

void TellParent() { WriteAll(kChildSocket, "x", 1); }

bool IsPeer(int argc, char** argv, PeerArguments& arguments) {
  if (argc != 7 || std::string(argv[1]) != "--peer") return false;
  arguments.scenario = argv[2];
  arguments.transports = argv[3];
  arguments.rank = std::atoi(argv[4]);
  arguments.size = std::atoi(argv[5]);
  arguments.peer_error_handling = std::string(argv[6]) == "peer";
  return true;
}

PeerProcesses::PeerProcesses(const PeerArguments& common) {
  for (int rank = 0; rank < common.size; ++rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    const std::string rank_text = std::to_string(rank);
    const std::string size_text = std::to_string(common.size);
    const pid_t pid = fork();
    if (pid == 0) {
      if (ends[1] == kChildSocket) {
        fcntl(kChildSocket, F_SETFD, 0);
      } else {
        dup2(ends[1], kChildSocket);
      }
      execl("/proc/self/exe", "peer", "--peer", common.scenario.c_str(), common.transports.c_str(),
            rank_text.c_str(), size_text.c_str(), common.peer_error_handling ? "peer" : "none",
            static_cast<char*>(nullptr));
      _exit(71);
    }
    close(ends[1]);
    pids_.push_back(pid);
    sockets_.push_back(ends[0]);
  }
}

PeerProcesses::~PeerProcesses() {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] > 0) Kill(static_cast<int>(rank));
    close(sockets_[rank]);
  }
}

void PeerProcesses::PassAddresses() {
  std::vector<std::string> all;
  all.reserve(sockets_.size());
  for (int socket : sockets_) all.push_back(ReadString(socket));
  for (int socket : sockets_) {
    for (const std::string& address : all) WriteString(socket, address);
  }
}

void PeerProcesses::AwaitChild(int rank) {
  char byte = 0;
  ReadAll(sockets_[rank], &byte, 1);
}

void PeerProcesses::Release(int rank) { WriteAll(sockets_[rank], "x", 1); }

void PeerProcesses::Kill(int rank) {
  kill(pids_[rank], SIGKILL);
  waitpid(pids_[rank], nullptr, 0);
  pids_[rank] = -1;
}

int PeerProcesses::Join(int rank) {
  int status = 0;
  waitpid(pids_[rank], &status, 0);
  pids_[rank] = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace relibra::transport

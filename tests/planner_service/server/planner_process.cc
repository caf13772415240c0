#include "tests/planner_service/server/planner_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

extern char** environ;

namespace relibra::server {
namespace {

// The number behind " name=" in a log line; 0 when there is none.
int NumberAfter(absl::string_view text, absl::string_view name) {
  const size_t at = text.find(absl::StrCat(" ", name, "="));
  if (at == absl::string_view::npos) return 0;
  absl::string_view digits = text.substr(at + name.size() + 2);
  digits = digits.substr(0, digits.find_first_not_of("0123456789"));
  int number = 0;
  return absl::SimpleAtoi(digits, &number) ? number : 0;
}

}  // namespace

PlannerProcess::PlannerProcess(const std::vector<std::string>& words) {
  std::array<int, 2> pipe_ends;
  EXPECT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  output_fd_ = pipe_ends[0];
  std::vector<std::string> all = {RELIBRA_PLANNER_BINARY};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  argv.reserve(all.size() + 1);
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
}

PlannerProcess::~PlannerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_fd_);
}

bool PlannerProcess::ReadMore() {
  std::array<char, 4096> buffer;
  const ssize_t bytes = read(output_fd_, buffer.data(), buffer.size());
  if (bytes <= 0) return false;
  output_.append(buffer.data(), bytes);
  return true;
}

bool PlannerProcess::WaitUntilServing() {
  while (true) {
    const size_t at = output_.find("event=serving");
    if (at != std::string::npos && output_.find('\n', at) != std::string::npos) {
      const absl::string_view line = absl::string_view(output_).substr(at);
      port_ = NumberAfter(line, "port");
      metrics_port_ = NumberAfter(line, "metrics_port");
      return true;
    }
    if (!ReadMore()) return false;
  }
}

void PlannerProcess::Signal(int signal) { kill(pid_, signal); }

int PlannerProcess::WaitForExit() {
  while (ReadMore()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    std::array<char, 4096> buffer;
    for (ssize_t n = 0; (n = read(fd, buffer.data(), buffer.size())) > 0;) {
      answer.append(buffer.data(), n);
    }
  }
  close(fd);
  return answer;
}

}  // namespace relibra::server

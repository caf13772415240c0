#include "tests/integration/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

extern char** environ;

namespace relibra {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words) {
  std::string pattern = (std::filesystem::temp_directory_path() / "relibra-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  directory_ = pattern;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, (directory_ + "/out").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  posix_spawn_file_actions_addopen(&actions, 2, (directory_ + "/err").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) {
    std::fprintf(stderr, "cannot run %s\n", words[0].c_str());
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : directory_(std::exchange(other.directory_, "")),
      pid_(std::exchange(other.pid_, -1)),
      status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (directory_.empty()) return;
  if (!Ended()) {
    Signal(SIGKILL);
    Wait();
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

bool ChildProcess::Ended() {
  if (status_ >= 0) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

int ChildProcess::Wait() {
  if (status_ < 0) {
    int status = 0;
    waitpid(pid_, &status, 0);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
}

void ChildProcess::Signal(int signal) const {
  if (status_ < 0) kill(pid_, signal);
}

bool ChildProcess::AwaitError(const std::string& text) {
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  inotify_add_watch(watch, (directory_ + "/err").c_str(), IN_MODIFY);
  while (Error().find(text) == std::string::npos && !Ended()) {
    // Wakes at every write; the bound is for the program's end, which is none.
    pollfd changed = {.fd = watch, .events = POLLIN, .revents = 0};
    poll(&changed, 1, /*timeout_ms=*/100);
    std::array<char, 4096> events;
    while (read(watch, events.data(), events.size()) > 0) {
    }
  }
  close(watch);
  return Error().find(text) != std::string::npos;
}

std::string ChildProcess::Output() const { return Contents(directory_ + "/out"); }
std::string ChildProcess::Error() const { return Contents(directory_ + "/err"); }

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::abort();
  }
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace relibra

#include "tests/planner_service/cli/run_relibra.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace relibra::cli {
namespace {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "relibra-cli-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  std::string File(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::string ScratchFile(const std::string& name) {
  static const ScratchFolder folder;
  return folder.File(name);
}

Ran RunRelibra(const std::vector<std::string>& words) {
  const std::string out = ScratchFile("stdout");
  const std::string err = ScratchFile("stderr");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<std::string> copies = {RELIBRA_BINARY};
  copies.insert(copies.end(), words.begin(), words.end());
  std::vector<char*> argv;
  argv.reserve(copies.size() + 1);
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, RELIBRA_BINARY, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  Ran ran;
  int status = 0;
  if (error != 0 || waitpid(child, &status, 0) != child) {
    ran.err = "cannot run " RELIBRA_BINARY;
    return ran;
  }
  ran.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ran.out = Contents(out);
  ran.err = Contents(err);
  return ran;
}

}  // namespace relibra::cli

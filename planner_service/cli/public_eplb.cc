#include "planner_service/cli/public_eplb.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "planner_service/trace/file_bytes.h"

namespace relibra::cli {
namespace {

// Prints the milliseconds as its last line.
constexpr char kScript[] = R"py(
import importlib.util, json, sys, time
with open(sys.argv[1]) as file:
    call = json.load(file)
import torch
spec = importlib.util.spec_from_file_location("public_eplb", call["path"])
eplb = importlib.util.module_from_spec(spec)
spec.loader.exec_module(eplb)
weight = torch.tensor(call["weight"])
times = []
for _ in range(3):
    start = time.perf_counter()
    eplb.rebalance_experts(weight, *call["shape"])
    times.append(time.perf_counter() - start)
print(1e3 * min(times))
)py";

struct Finished {
  int exit_status = 0;
  std::string output;  // standard output and standard error together
};

absl::StatusOr<Finished> RunPython(const std::string& argument) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("python3: no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::string words[] = {"python3", "-c", kScript, argument};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, "python3", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Finished finished;
  char buffer[4096];
  for (ssize_t got = 0; error == 0 && (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    finished.output.append(buffer, got);
  }
  close(ends[0]);
  if (error != 0) return absl::UnavailableError("python3: not found on the PATH");
  if (waitpid(child, &finished.exit_status, 0) != child) {
    return absl::UnavailableError("python3: lost");
  }
  return finished;
}

}  // namespace

absl::StatusOr<double> TimePublicEplb(const std::string& eplb_py,
                                      const std::vector<std::vector<float>>& weights,
                                      const EplbShape& shape) {
  const nlohmann::json call = {
      {"path", eplb_py},
      {"weight", weights},
      {"shape", {shape.num_replicas, shape.num_groups, shape.num_nodes, shape.num_gpus}}};
  char path[] = "/tmp/relibra-eplb-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return absl::UnavailableError(absl::StrCat(path, ": cannot be created"));
  close(file);
  const absl::Cleanup remove = [&path] { unlink(path); };
  if (absl::Status s = WriteFileBytes(path, call.dump()); !s.ok()) return s;
  const absl::StatusOr<Finished> finished = RunPython(path);
  if (!finished.ok()) return finished.status();
  const std::vector<std::string> lines = absl::StrSplit(finished->output, '\n', absl::SkipEmpty());
  double milliseconds = 0;
  if (finished->exit_status != 0 || lines.empty() ||
      !absl::SimpleAtod(lines.back(), &milliseconds)) {
    return absl::UnavailableError(
        absl::StrCat(eplb_py, ": python3: ", lines.empty() ? "failed" : lines.back()));
  }
  return milliseconds;
}

}  // namespace relibra::cli

#include "planner_service/trace/file_bytes.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

absl::Status SystemError(int error, const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadFileBytes(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return SystemError(errno, path, "cannot be opened");
  struct stat info = {};
  if (fstat(fileno(file.get()), &info) != 0) return SystemError(errno, path, "cannot be read");
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a file, got a folder"));
  }
  std::string bytes;
  // A pipe has no size: it is read in pieces. A file is read at once, and once more for its end.
  constexpr size_t kPiece = size_t{1} << 20;
  size_t next = S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) + 1 : kPiece;
  while (true) {
    const size_t before = bytes.size();
    bytes.resize(before + next);
    const size_t got = std::fread(bytes.data() + before, 1, next, file.get());
    bytes.resize(before + got);
    if (got < next) break;
    next = kPiece;
  }
  if (std::ferror(file.get()) != 0) return SystemError(errno, path, "cannot be read");
  return bytes;
}

absl::Status WriteFileBytes(const std::string& path, absl::string_view bytes) {
  File file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return SystemError(errno, path, "cannot be created");
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    return SystemError(errno, path, "cannot be written");
  }
  if (std::fclose(file.release()) != 0) return SystemError(errno, path, "cannot be written");
  return absl::OkStatus();
}

}  // namespace relibra

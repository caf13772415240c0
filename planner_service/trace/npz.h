// NumPy's archives of arrays (.npz): zip files of .npy files.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_NPZ_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_NPZ_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner_service/trace/npy.h"

namespace relibra {

// The arrays of an archive, uncompressed, by name (without ".npy").
class NpzArchive {
 public:
  // The array, or null when the archive has none of that name. Valid while the archive is.
  const NpyArray* Find(absl::string_view name) const;

  std::vector<std::string> names() const;

  // Takes an array's bytes out of the archive; they start with the .npy header, the array's `data`
  // is their tail. The array must exist and can no longer be found.
  std::string Take(absl::string_view name);

 private:
  friend absl::StatusOr<NpzArchive> ReadNpz(absl::string_view bytes, absl::string_view name,
                                            uint64_t max_bytes);
  struct Entry {
    std::string bytes;
    NpyArray array;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

// Reads an archive that lies in memory; every array is read and its checksum verified.
// INVALID_ARGUMENT, starting with `name` (the file) and naming the array, when the archive is cut
// off, corrupt, encrypted, has an array twice or one that ParseNpy refuses (entries that are not
// .npy files are refused as well). RESOURCE_EXHAUSTED when the arrays, or what the archive claims
// of them, exceed max_bytes: memory is taken as bytes arrive, so a false claim costs nothing.
absl::StatusOr<NpzArchive> ReadNpz(absl::string_view bytes, absl::string_view name,
                                   uint64_t max_bytes);

// An archive of the given files (name without ".npy", bytes of an .npy file), not compressed. The
// same arrays give the same bytes.
absl::StatusOr<std::string> NpzBytes(
    const std::vector<std::pair<std::string, std::string>>& arrays);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_NPZ_H_

#include "planner_service/trace/npz.h"

#include <zip.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace relibra {
namespace {

struct ZipCloser {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};
using Zip = std::unique_ptr<zip_t, ZipCloser>;

struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using ZipFile = std::unique_ptr<zip_file_t, ZipFileCloser>;

// An error of libzip's that lives on the stack.
class ZipError {
 public:
  ZipError() { zip_error_init(&error_); }
  ~ZipError() { zip_error_fini(&error_); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;

  zip_error_t* get() { return &error_; }
  absl::string_view text() { return zip_error_strerror(&error_); }

 private:
  zip_error_t error_;
};

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::StatusOr<Zip> OpenInMemory(absl::string_view bytes, absl::string_view name) {
  ZipError error;
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, error.get());
  if (source == nullptr) return Invalid(name, ": not an .npz archive: ", error.text());
  Zip zip(zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, error.get()));
  if (zip == nullptr) {
    zip_source_free(source);
    return Invalid(name, ": not an .npz archive, or one cut off: ", error.text());
  }
  return zip;
}

// Reads one entry of `claimed` bytes.
absl::StatusOr<std::string> ReadEntry(zip_t* zip, zip_uint64_t index, uint64_t claimed,
                                      absl::string_view where) {
  ZipFile file(zip_fopen_index(zip, index, 0));
  if (file == nullptr) return Invalid(where, ": cannot be read: ", zip_strerror(zip));
  std::string bytes;
  constexpr uint64_t kFirstPiece = 1 << 20;
  while (true) {
    // One byte more than claimed shows a lie, and reaching the end makes libzip verify the
    // checksum.
    const uint64_t piece =
        std::min(claimed + 1 - bytes.size(), std::max<uint64_t>(kFirstPiece, bytes.size()));
    const size_t before = bytes.size();
    bytes.resize(before + piece);
    const zip_int64_t got = zip_fread(file.get(), bytes.data() + before, piece);
    if (got < 0) return Invalid(where, ": cannot be read: ", zip_file_strerror(file.get()));
    bytes.resize(before + got);
    if (bytes.size() > claimed) break;
    if (got == 0) break;
  }
  if (bytes.size() != claimed) {
    return Invalid(where, ": expected ", claimed, " bytes as the archive says, got ",
                   bytes.size() > claimed ? "more" : absl::StrCat(bytes.size()));
  }
  return bytes;
}

}  // namespace

const NpyArray* NpzArchive::Find(absl::string_view name) const {
  auto entry = entries_.find(std::string(name));
  return entry == entries_.end() ? nullptr : &entry->second.array;
}

std::vector<std::string> NpzArchive::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string NpzArchive::Take(absl::string_view name) {
  auto entry = entries_.find(std::string(name));
  std::string bytes = std::move(entry->second.bytes);
  entries_.erase(entry);
  return bytes;
}

absl::StatusOr<NpzArchive> ReadNpz(absl::string_view bytes, absl::string_view name,
                                   uint64_t max_bytes) {
  absl::StatusOr<Zip> zip = OpenInMemory(bytes, name);
  if (!zip.ok()) return zip.status();
  NpzArchive archive;
  uint64_t total = 0;
  const zip_int64_t entries = zip_get_num_entries(zip->get(), 0);
  for (zip_int64_t i = 0; i < entries; ++i) {
    zip_stat_t info;
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE;
    if (zip_stat_index(zip->get(), i, 0, &info) != 0 || (info.valid & kNeeded) != kNeeded) {
      return Invalid(name, ": entry ", i, ": cannot be read: ", zip_strerror(zip->get()));
    }
    absl::string_view array_name(info.name);
    if (!absl::ConsumeSuffix(&array_name, ".npy")) {
      return Invalid(name, ": expected only .npy arrays in it, got \"", info.name, "\"");
    }
    const std::string where = absl::StrCat(name, ": ", array_name);
    if (info.size > max_bytes || (total += info.size) > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          where, ": the archive unpacks to more than the limit of ", max_bytes, " bytes"));
    }
    absl::StatusOr<std::string> entry = ReadEntry(zip->get(), i, info.size, where);
    if (!entry.ok()) return entry.status();
    auto [slot, added] = archive.entries_.try_emplace(std::string(array_name));
    if (!added) return Invalid(where, ": stands twice in the archive");
    slot->second.bytes = *std::move(entry);
    // The array looks into bytes that from now on stay where they are, in the map's node.
    absl::StatusOr<NpyArray> array = ParseNpy(slot->second.bytes, where);
    if (!array.ok()) return array.status();
    slot->second.array = *std::move(array);
  }
  return archive;
}

absl::StatusOr<std::string> NpzBytes(
    const std::vector<std::pair<std::string, std::string>>& arrays) {
  ZipError error;
  zip_source_t* target = zip_source_buffer_create(nullptr, 0, 0, error.get());
  if (target == nullptr) return absl::InternalError(error.text());
  zip_source_keep(target);  // it outlives the archive, to be read below
  const std::unique_ptr<zip_source_t, decltype(&zip_source_free)> kept(target, zip_source_free);
  Zip zip(zip_open_from_source(target, ZIP_TRUNCATE, error.get()));
  if (zip == nullptr) {
    zip_source_free(target);
    return absl::InternalError(error.text());
  }
  for (const auto& [name, bytes] : arrays) {
    zip_source_t* source = zip_source_buffer(zip.get(), bytes.data(), bytes.size(), 0);
    const zip_int64_t index =
        zip_file_add(zip.get(), absl::StrCat(name, ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return absl::InternalError(zip_strerror(zip.get()));
    }
    constexpr zip_uint16_t kFirstOfJanuary1980 = 0x21;  // the same bytes at any time of writing
    zip_set_file_compression(zip.get(), index, ZIP_CM_STORE, 0);
    zip_file_set_dostime(zip.get(), index, 0, kFirstOfJanuary1980, 0);
  }
  if (zip_close(zip.get()) != 0) return absl::InternalError(zip_strerror(zip.get()));
  static_cast<void>(zip.release());  // closed, hence freed
  if (zip_source_open(target) != 0) return absl::InternalError("cannot read the archive back");
  zip_stat_t info;
  zip_source_stat(target, &info);
  std::string out(info.size, '\0');
  const zip_int64_t got = zip_source_read(target, out.data(), out.size());
  zip_source_close(target);
  if (got != static_cast<zip_int64_t>(out.size())) {
    return absl::InternalError("cannot read the archive back");
  }
  return out;
}

}  // namespace relibra

// NumPy's array files (.npy) in memory, as far as ReLibra needs them: integers and short strings.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_NPY_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace relibra {

// A look at an array; the bytes belong to whoever had them parsed.
struct NpyArray {
  char kind = 0;          // as in NumPy: 'i', 'u', or for strings 'U' (4 bytes a character), 'S'
  size_t item_bytes = 0;  // of one element
  std::vector<size_t> shape = {};  // empty: a scalar
  absl::string_view data = {};     // C order, little-endian, perhaps not aligned

  size_t size() const;  // elements
};

// "int32", "uint8", "<U12" … for messages.
std::string DtypeName(const NpyArray& array);

// "[3, 5]" for messages.
std::string ShapeText(absl::Span<const size_t> shape);

// The place of element `index` in a shape, "[m][l][s][e]", for messages.
std::string PlaceText(absl::Span<const size_t> shape, size_t index);

// Reads the bytes of an .npy file, format version 1 to 3. INVALID_ARGUMENT, starting with `where`
// ("file: array"), unless the header is well formed, the dtype a little-endian integer of 1, 2, 4
// or 8 bytes or a string, the order C, and the data exactly as long as the shape says.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view bytes, absl::string_view where);

// The elements of an integer array, each from `least` to `most`; INVALID_ARGUMENT naming the first
// that is not by its indices. `where` as above.
absl::StatusOr<std::vector<uint32_t>> ToUint32(const NpyArray& array, absl::string_view where,
                                               uint32_t least, uint32_t most);
absl::StatusOr<std::vector<uint64_t>> ToUint64(const NpyArray& array, absl::string_view where);

// The elements as text: strings as they are (UTF-8), integers in digits.
absl::StatusOr<std::vector<std::string>> ToStrings(const NpyArray& array, absl::string_view where);

// The bytes of an .npy file (format version 1). descr: NumPy's dtype string, e.g. "<u4".
std::string NpyBytes(absl::string_view descr, absl::Span<const size_t> shape,
                     absl::string_view data);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_NPY_H_

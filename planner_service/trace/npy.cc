#include "planner_service/trace/npy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace relibra {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The header is a Python dict literal with exactly three keys.
class HeaderParser {
 public:
  HeaderParser(absl::string_view text, absl::string_view where) : rest_(text), where_(where) {}

  absl::Status Parse() {
    if (!Take('{')) return Bad("expected '{'");
    while (!Take('}')) {
      std::string key;
      if (!TakeString(key) || !Take(':')) return Bad("expected a key");
      absl::Status status = key == "descr"           ? ParseDescr()
                            : key == "fortran_order" ? ParseOrder()
                            : key == "shape"         ? ParseShape()
                                                     : Bad(absl::StrCat("unknown key ", key));
      if (!status.ok()) return status;
      if (!Take(',') && Next() != '}') return Bad("expected ',' or '}'");
    }
    if (Next() != '\0') return Bad("text after '}'");
    if (!have_descr_ || !have_order_ || !have_shape_) {
      return Bad("expected descr, fortran_order and shape");
    }
    return absl::OkStatus();
  }

  const std::string& descr() const { return descr_; }
  bool fortran_order() const { return fortran_order_; }
  std::vector<size_t>& shape() { return shape_; }

 private:
  absl::Status Bad(absl::string_view why) const {
    return Invalid(where_, ": malformed .npy header: ", why);
  }

  // The next byte that is not white space; '\0' at the end.
  char Next() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_[0];
  }

  bool Take(char c) {
    if (Next() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool TakeWord(absl::string_view word) {
    Next();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool TakeString(std::string& out) {
    const char quote = Next();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = rest_.find(quote, 1);
    if (end == absl::string_view::npos) return false;
    out = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return true;
  }

  absl::Status ParseDescr() {
    if (Next() == '[') {
      return Invalid(where_, ": expected an integer dtype, got a structured one");
    }
    if (have_descr_ || !TakeString(descr_)) return Bad("descr");
    have_descr_ = true;
    return absl::OkStatus();
  }

  absl::Status ParseOrder() {
    fortran_order_ = TakeWord("True");
    if (have_order_ || (!fortran_order_ && !TakeWord("False"))) return Bad("fortran_order");
    have_order_ = true;
    return absl::OkStatus();
  }

  absl::Status ParseShape() {
    if (have_shape_ || !Take('(')) return Bad("shape");
    have_shape_ = true;
    while (!Take(')')) {
      Next();
      const size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      uint64_t size = 0;
      if (digits == 0 || !absl::SimpleAtoi(rest_.substr(0, digits), &size)) return Bad("shape");
      rest_.remove_prefix(digits);
      shape_.push_back(size);
      if (!Take(',') && Next() != ')') return Bad("shape");
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
  const absl::string_view where_;
  bool have_descr_ = false;
  bool have_order_ = false;
  bool have_shape_ = false;
  std::string descr_;
  bool fortran_order_ = false;
  std::vector<size_t> shape_;
};

// Fills in kind and item_bytes.
absl::Status ReadDescr(const std::string& descr, absl::string_view where, NpyArray& array) {
  uint32_t number = 0;
  const bool readable = descr.size() >= 3 && absl::SimpleAtoi(descr.substr(2), &number) &&
                        absl::string_view("<>|=").find(descr[0]) != absl::string_view::npos;
  array.kind = readable ? descr[1] : '\0';
  const bool is_integer = (array.kind == 'i' || array.kind == 'u') &&
                          (number == 1 || number == 2 || number == 4 || number == 8);
  const bool is_string = (array.kind == 'U' || array.kind == 'S') && number >= 1 && number < 65536;
  if (!is_integer && !is_string) {
    return Invalid(where, ": expected an integer dtype, got \"", descr, "\"");
  }
  array.item_bytes = array.kind == 'U' ? size_t{4} * number : number;
  const bool order_matters = array.kind == 'U' || (is_integer && array.item_bytes > 1);
  if (order_matters && descr[0] != '<') {
    return Invalid(where, ": expected little-endian elements, got \"", descr, "\"");
  }
  return absl::OkStatus();
}

// Reads element i of an integer array; NumPy's eight integer types fit into int64 but for uint64.
template <typename T>
T Load(const NpyArray& array, size_t i) {
  T value;
  std::memcpy(&value, array.data.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename F>
auto WithElementType(const NpyArray& array, F f) {
  const bool is_signed = array.kind == 'i';
  switch (array.item_bytes) {
    case 1:
      return is_signed ? f(int8_t{}) : f(uint8_t{});
    case 2:
      return is_signed ? f(int16_t{}) : f(uint16_t{});
    case 4:
      return is_signed ? f(int32_t{}) : f(uint32_t{});
    default:
      return is_signed ? f(int64_t{}) : f(uint64_t{});
  }
}

template <typename Out>
absl::StatusOr<std::vector<Out>> ToUnsigned(const NpyArray& array, absl::string_view where,
                                            Out least, Out most) {
  if (array.kind != 'i' && array.kind != 'u') {
    return Invalid(where, ": expected integers, got ", DtypeName(array));
  }
  std::vector<Out> out(array.size());
  return WithElementType(array, [&](auto zero) -> absl::StatusOr<std::vector<Out>> {
    using T = decltype(zero);
    bool good = true;
    for (size_t i = 0; i < out.size(); ++i) {
      const T value = Load<T>(array, i);
      out[i] = static_cast<Out>(+value);  // promoted first, as a number
      good &= !std::cmp_less(value, least) && !std::cmp_greater(value, most);
    }
    if (good) return std::move(out);
    size_t i = 0;
    while (!std::cmp_less(Load<T>(array, i), least) && !std::cmp_greater(Load<T>(array, i), most)) {
      ++i;
    }
    return Invalid(where, PlaceText(array.shape, i), ": expected ", least, " to ", most, ", got ",
                   Load<T>(array, i));
  });
}

void AppendUtf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace

size_t NpyArray::size() const {
  size_t size = 1;
  for (size_t dimension : shape) size *= dimension;
  return size;
}

std::string DtypeName(const NpyArray& array) {
  switch (array.kind) {
    case 'i':
      return absl::StrCat("int", array.item_bytes * 8);
    case 'u':
      return absl::StrCat("uint", array.item_bytes * 8);
    case 'U':
      return absl::StrCat("<U", array.item_bytes / 4);
    default:
      return absl::StrCat("|", std::string(1, array.kind), array.item_bytes);
  }
}

std::string ShapeText(absl::Span<const size_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string PlaceText(absl::Span<const size_t> shape, size_t index) {
  std::string text;
  for (size_t d = shape.size(); d-- > 0;) {
    text = absl::StrCat("[", index % shape[d], "]", text);
    index /= shape[d];
  }
  return text;
}

absl::StatusOr<NpyArray> ParseNpy(absl::string_view bytes, absl::string_view where) {
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < 10) {
    return Invalid(where, ": expected the bytes of an .npy file, got ", bytes.size(), " others");
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) {
    return Invalid(where, ": expected .npy format version 1, 2 or 3, got ", version);
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t header_start = 8 + length_bytes;
  uint32_t header_size = 0;
  if (bytes.size() >= header_start) std::memcpy(&header_size, bytes.data() + 8, length_bytes);
  constexpr uint32_t kMostHeader = 1 << 16;
  if (bytes.size() < header_start + header_size || header_size > kMostHeader) {
    return Invalid(where, ": .npy header of ", header_size, " bytes is cut off or too long");
  }
  HeaderParser header(bytes.substr(header_start, header_size), where);
  if (absl::Status status = header.Parse(); !status.ok()) return status;
  NpyArray array;
  if (absl::Status status = ReadDescr(header.descr(), where, array); !status.ok()) return status;
  array.shape = std::move(header.shape());
  if (header.fortran_order() && array.shape.size() > 1) {
    return Invalid(where, ": expected C order, got Fortran order (use numpy.ascontiguousarray)");
  }
  array.data = bytes.substr(header_start + header_size);
  size_t expected = array.item_bytes;
  for (size_t dimension : array.shape) {
    if (dimension != 0 && expected > std::numeric_limits<ptrdiff_t>::max() / dimension) {
      return Invalid(where, ": shape ", ShapeText(array.shape), " is larger than memory");
    }
    expected *= dimension;
  }
  if (array.data.size() != expected) {
    return Invalid(where, ": expected ", expected, " bytes of ", DtypeName(array), " ",
                   ShapeText(array.shape), ", got ", array.data.size());
  }
  return array;
}

absl::StatusOr<std::vector<uint32_t>> ToUint32(const NpyArray& array, absl::string_view where,
                                               uint32_t least, uint32_t most) {
  return ToUnsigned<uint32_t>(array, where, least, most);
}

absl::StatusOr<std::vector<uint64_t>> ToUint64(const NpyArray& array, absl::string_view where) {
  return ToUnsigned<uint64_t>(array, where, 0, std::numeric_limits<uint64_t>::max());
}

absl::StatusOr<std::vector<std::string>> ToStrings(const NpyArray& array, absl::string_view where) {
  std::vector<std::string> out(array.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (array.kind == 'S') {
      const absl::string_view text = array.data.substr(i * array.item_bytes, array.item_bytes);
      out[i] = std::string(text.substr(0, text.find('\0')));  // padded with zeros
    } else if (array.kind == 'U') {
      const size_t length = array.item_bytes / 4;
      for (size_t k = 0; k < length; ++k) {
        const auto c = Load<uint32_t>(array, i * length + k);
        if (c == 0) break;
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
          return Invalid(where, PlaceText(array.shape, i),
                         ": expected Unicode text, got character ", c);
        }
        AppendUtf8(out[i], c);
      }
    } else {
      out[i] = WithElementType(
          array, [&](auto zero) { return absl::StrCat(+Load<decltype(zero)>(array, i)); });
    }
  }
  return out;
}

std::string NpyBytes(absl::string_view descr, absl::Span<const size_t> shape,
                     absl::string_view data) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  // Magic, version and length take 10 bytes; data starts at a multiple of 64, after a newline.
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string bytes(kMagic);
  bytes += '\x01';
  bytes += '\0';
  const auto size = static_cast<uint16_t>(header.size());
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += header;
  absl::StrAppend(&bytes, data);
  return bytes;
}

}  // namespace relibra

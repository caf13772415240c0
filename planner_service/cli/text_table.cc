#include "planner_service/cli/text_table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace relibra::cli {
namespace {

// Characters of a UTF-8 string: bytes that do not continue one.
size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string TextTable::ToString() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < std::min(row.size(), widths.size()); ++c) {
      widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string cell = c < rows_[r].size() ? rows_[r][c] : "";
      const std::string pad(widths[c] - Width(cell), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", c == 0 ? cell : pad, c == 0 ? pad : cell);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
    if (r > 0) continue;
    size_t total = 2 * (widths.size() - 1);
    for (size_t width : widths) total += width;
    absl::StrAppend(&text, std::string(total, '-'), "\n");
  }
  return text;
}

}  // namespace relibra::cli

#include "kernels/id_report.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace relibra {

absl::Status CheckIds(const IdReport& report, absl::string_view name,
                      absl::Span<const int64_t> row_shape, int64_t limit) {
  if (report.invalid == 0) return absl::OkStatus();
  std::vector<uint64_t> index(row_shape.size() + 1);
  uint64_t rest = report.first_position;
  for (size_t d = row_shape.size(); d > 0; --d) {
    const uint64_t size = row_shape[d - 1] > 0 ? static_cast<uint64_t>(row_shape[d - 1]) : 1;
    index[d] = rest % size;
    rest /= size;
  }
  index[0] = rest;
  std::string where(name);
  for (const uint64_t i : index) absl::StrAppend(&where, "[", i, "]");
  return absl::InvalidArgumentError(absl::StrCat(where, " is not below ", limit, " (",
                                                 report.invalid, " such ids, all left out)"));
}

}  // namespace relibra

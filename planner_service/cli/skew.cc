#include "planner_service/cli/skew.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace relibra::cli {

absl::StatusOr<Skew> ParseSkew(const std::string& words) {
  if (words == "harsh") return Skew{.layer = 1.0, .domain = 0.8, .sequence = 0.5};
  if (words == "mild") return Skew{.layer = 0.6, .domain = 0.5, .sequence = 0.3};
  const std::vector<std::string> parts = absl::StrSplit(words, '/');
  Skew skew;
  if (parts.size() == 3 && absl::SimpleAtod(parts[0], &skew.layer) &&
      absl::SimpleAtod(parts[1], &skew.domain) && absl::SimpleAtod(parts[2], &skew.sequence)) {
    return skew;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("skew: expected harsh, mild or three numbers a/b/c, got \"", words, "\""));
}

}  // namespace relibra::cli

#include "planner_service/trace/slot_yaml.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace relibra {
namespace {

std::optional<int32_t> Number(absl::string_view text) {
  int32_t number = 0;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty() || text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(text, &number)) {
    return std::nullopt;
  }
  return number;
}

class Parser {
 public:
  explicit Parser(absl::string_view name) : name_(name) {}

  absl::StatusOr<SlotMap> Parse(absl::string_view text) {
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      ++line_;
      line = absl::StripTrailingAsciiWhitespace(line.substr(0, line.find('#')));
      const absl::string_view content = absl::StripLeadingAsciiWhitespace(line);
      if (content.empty()) continue;
      absl::Status status = in_brackets_                   ? Ids(content)
                            : content.size() < line.size() ? Indented(content)
                                                           : TopLevel(content);
      if (!status.ok()) return status;
    }
    if (in_brackets_) return Bad("expected ']' before the end");
    if (absl::Status status = EndOfLayer(); !status.ok()) return status;
    if (map_.rows.empty()) return Bad("expected initial_global_assignments with at least 1 layer");
    return std::move(map_);
  }

 private:
  template <typename... Parts>
  absl::Status Bad(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": line ", line_, ": ", parts...));
  }

  absl::Status TopLevel(absl::string_view content) {
    if (in_layer_ && absl::StartsWith(content, "-")) return Item(content);
    in_assignments_ = content == "initial_global_assignments:";
    if (in_assignments_) return absl::OkStatus();
    const std::vector<absl::string_view> parts = absl::StrSplit(content, absl::MaxSplits(':', 1));
    const absl::string_view key = parts[0];
    if (key != "num_slots" && key != "ep_size" && key != "layer_updates_per_iter") {
      return Bad(
          "expected num_slots, ep_size, layer_updates_per_iter or "
          "initial_global_assignments, got \"",
          content, "\"");
    }
    const std::optional<int32_t> value = parts.size() == 2 ? Number(parts[1]) : std::nullopt;
    if (!value.has_value()) return Bad(key, ": expected an integer from 0");
    if (key == "num_slots" && num_slots_.has_value() && *num_slots_ != *value) {
      return Bad("num_slots: expected ", *num_slots_, " as above, got ", *value);
    }
    if (key == "num_slots") num_slots_ = value;
    return absl::OkStatus();
  }

  absl::Status Indented(absl::string_view content) {
    if (!in_assignments_) return Bad("expected no indented line here, got \"", content, "\"");
    if (absl::StartsWith(content, "-")) return Item(content);
    const std::vector<absl::string_view> parts = absl::StrSplit(content, absl::MaxSplits(':', 1));
    const std::optional<int32_t> layer = Number(parts[0]);
    if (!layer.has_value() || parts.size() != 2) {
      return Bad("expected a layer number and ':', got \"", content, "\"");
    }
    if (absl::Status status = EndOfLayer(); !status.ok()) return status;
    if (!map_.layer_ids.empty() && static_cast<uint32_t>(*layer) <= map_.layer_ids.back()) {
      return Bad("expected a layer above ", map_.layer_ids.back(), " (ascending), got ", *layer);
    }
    map_.layer_ids.push_back(static_cast<uint32_t>(*layer));
    map_.rows.emplace_back();
    in_layer_ = true;
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(parts[1]);
    if (rest.empty()) return absl::OkStatus();
    if (!absl::ConsumePrefix(&rest, "[")) return Bad("expected '[', got \"", rest, "\"");
    in_brackets_ = true;
    return Ids(rest);
  }

  // "- 5"
  absl::Status Item(absl::string_view content) {
    const std::optional<int32_t> id = Number(content.substr(1));
    if (!in_layer_ || !id.has_value()) {
      return Bad("expected \"- \" and an expert, below a layer, got \"", content, "\"");
    }
    map_.rows.back().push_back(*id);
    return absl::OkStatus();
  }

  // What stands between brackets on one line: "5, 6, 5," or "7]".
  absl::Status Ids(absl::string_view content) {
    if (absl::ConsumeSuffix(&content, "]")) in_brackets_ = false;
    for (absl::string_view item : absl::StrSplit(content, ',')) {
      item = absl::StripAsciiWhitespace(item);
      if (item.empty()) continue;
      const std::optional<int32_t> id = Number(item);
      if (!id.has_value()) return Bad("expected an expert from 0, got \"", item, "\"");
      map_.rows.back().push_back(*id);
    }
    return absl::OkStatus();
  }

  // Checks the layer that ends here, if there is one.
  absl::Status EndOfLayer() {
    if (!in_layer_) return absl::OkStatus();
    in_layer_ = false;
    if (!num_slots_.has_value()) num_slots_ = static_cast<int32_t>(map_.rows.front().size());
    if (map_.rows.back().empty() || map_.rows.back().size() != static_cast<size_t>(*num_slots_)) {
      return Bad("layer ", map_.layer_ids.back(), ": expected ", *num_slots_, " slots, got ",
                 map_.rows.back().size());
    }
    return absl::OkStatus();
  }

  const absl::string_view name_;
  int line_ = 0;
  bool in_assignments_ = false;
  bool in_layer_ = false;
  bool in_brackets_ = false;
  std::optional<int32_t> num_slots_;
  SlotMap map_;
};

}  // namespace

absl::StatusOr<SlotMap> ParseTensorRtSlots(absl::string_view text, absl::string_view name) {
  return Parser(name).Parse(text);
}

}  // namespace relibra

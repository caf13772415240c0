#include "planner_service/trace/json_text.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace relibra {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// nlohmann's messages start with "[json.exception.<kind>.<number>] ", which says nothing to a user.
absl::string_view WithoutPrefix(absl::string_view message) {
  const size_t end = message.find("] ");
  return end == absl::string_view::npos ? message : message.substr(end + 2);
}

// Watches a parse for what the parser itself lets pass.
class Watcher {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        fields_.emplace_back();
        CheckDepth(depth);
        break;
      case json::parse_event_t::array_start:
        CheckDepth(depth);
        break;
      case json::parse_event_t::object_end:
        fields_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!fields_.back().insert(parsed.get_ref<const std::string&>()).second && error_.empty()) {
          error_ = absl::StrCat("field \"", parsed.get_ref<const std::string&>(),
                                "\" stands twice in one object");
        }
        break;
      default:
        break;
    }
    return true;
  }

  const std::string& error() const { return error_; }

 private:
  void CheckDepth(int depth) {
    if (depth > kMaxDepth && error_.empty()) {
      error_ = absl::StrCat("nested deeper than ", kMaxDepth);
    }
  }

  std::vector<std::set<std::string>> fields_;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view name) {
  Watcher watcher;
  json value;
  try {
    value = json::parse(text.begin(), text.end(),
                        [&](int depth, json::parse_event_t event, json& parsed) {
                          return watcher(depth, event, parsed);
                        });
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON: ", WithoutPrefix(e.what())));
  }
  if (!watcher.error().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", watcher.error()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected a JSON object, got ", KindOf(value)));
  }
  return value;
}

absl::Status CheckKnownFields(const json& object, std::initializer_list<absl::string_view> known,
                              absl::string_view name) {
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": unknown field \"", item.key(),
                                                     "\"; known are ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::string_view KindOf(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "true or false";
    case json::value_t::number_float:
      return "a number that is not a 64-bit integer";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return "an integer";
    default:
      return "something else";
  }
}

std::string Shown(const json& value) {
  return value.is_number() ? value.dump() : std::string(KindOf(value));
}

}  // namespace relibra

// JSON that people and other tools wrote, read strictly.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace relibra {

// Parses a JSON text whose outermost value is an object. INVALID_ARGUMENT, starting with `name`
// (the file), for anything that is not JSON (with line and column), for another outermost value,
// for nesting deeper than 64 and for a field that stands twice in one object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view name);

// INVALID_ARGUMENT naming the first field of `object` that is not one of `known`.
absl::Status CheckKnownFields(const nlohmann::json& object,
                              std::initializer_list<absl::string_view> known,
                              absl::string_view name);

// The integers of an array, each in least..(the largest T). `where` names the array ("file:
// field"); INVALID_ARGUMENT names the index of the first value that is not such an integer.
template <typename T>
absl::StatusOr<std::vector<T>> IntegerList(const nlohmann::json& value, absl::string_view where,
                                           T least);

// An array of such arrays. They may differ in length.
template <typename T>
absl::StatusOr<std::vector<std::vector<T>>> IntegerMatrix(const nlohmann::json& value,
                                                          absl::string_view where, T least);

// What kind of value it is, for messages: "a string", "a fraction", "null" …
absl::string_view KindOf(const nlohmann::json& value);

// A number as it stands, anything else by its kind, for messages.
std::string Shown(const nlohmann::json& value);

template <typename T>
absl::StatusOr<std::vector<T>> IntegerList(const nlohmann::json& value, absl::string_view where,
                                           T least) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected an array of integers, got ", KindOf(value)));
  }
  std::vector<T> numbers;
  numbers.reserve(value.size());
  for (const nlohmann::json& item : value) {
    // Negative integers are signed and the others unsigned; both may need 64 bits.
    const bool fits = item.is_number_unsigned()
                          ? item.get<uint64_t>() <= uint64_t{std::numeric_limits<T>::max()} &&
                                (least <= 0 || item.get<uint64_t>() >= static_cast<uint64_t>(least))
                          : item.is_number_integer() && item.get<int64_t>() >= int64_t{least};
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "[", numbers.size(), "]: expected an integer from ", least, " to ",
                       std::numeric_limits<T>::max(), ", got ", Shown(item)));
    }
    numbers.push_back(item.get<T>());
  }
  return numbers;
}

template <typename T>
absl::StatusOr<std::vector<std::vector<T>>> IntegerMatrix(const nlohmann::json& value,
                                                          absl::string_view where, T least) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected an array of arrays, got ", KindOf(value)));
  }
  std::vector<std::vector<T>> rows;
  rows.reserve(value.size());
  for (const nlohmann::json& item : value) {
    absl::StatusOr<std::vector<T>> row =
        IntegerList<T>(item, absl::StrCat(where, "[", rows.size(), "]"), least);
    if (!row.ok()) return row.status();
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_JSON_TEXT_H_

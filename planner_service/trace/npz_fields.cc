#include "planner_service/trace/npz_fields.h"

#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace

std::string NpzFields::Where(absl::string_view field) const {
  return absl::StrCat(name_, ": ", field);
}

absl::StatusOr<const NpyArray*> NpzFields::Array(absl::string_view field, size_t rank,
                                                 absl::string_view dimensions) const {
  const NpyArray* array = archive_.Find(field);
  if (array == nullptr) {
    return Invalid(Where(field), ": expected an array ", dimensions, ", but there is none");
  }
  if (array->shape.size() != rank) {
    return Invalid(Where(field), ": expected shape ", dimensions, ", got ",
                   ShapeText(array->shape));
  }
  constexpr size_t kMost = std::numeric_limits<int>::max();
  for (size_t size : array->shape) {
    if (size < 1 || size > kMost) {
      return Invalid(Where(field), ": expected shape ", dimensions,
                     " with no dimension empty, got ", ShapeText(array->shape));
    }
  }
  return array;
}

absl::StatusOr<std::vector<uint32_t>> NpzFields::Numbers(absl::string_view field,
                                                         absl::Span<const size_t> shape,
                                                         uint32_t least, uint32_t most) const {
  const NpyArray* array = archive_.Find(field);
  if (array == nullptr) {
    return Invalid(Where(field), ": expected an array ", ShapeText(shape), ", but there is none");
  }
  if (shape != absl::MakeConstSpan(array->shape)) {
    return Invalid(Where(field), ": expected shape ", ShapeText(shape), ", got ",
                   ShapeText(array->shape));
  }
  return ToUint32(*array, Where(field), least, most);
}

absl::StatusOr<uint32_t> NpzFields::Scalar(absl::string_view field, uint32_t least,
                                           uint32_t most) const {
  const NpyArray* array = archive_.Find(field);
  if (array == nullptr || array->size() != 1) {
    return Invalid(Where(field), ": expected a number, got ",
                   array == nullptr ? std::string("none") : ShapeText(array->shape));
  }
  absl::StatusOr<std::vector<uint32_t>> numbers = ToUint32(*array, Where(field), least, most);
  if (!numbers.ok()) return numbers.status();
  return numbers->front();
}

absl::StatusOr<std::vector<uint32_t>> NpzFields::LayerIds(size_t num_layers) const {
  if (!Has("layer_ids")) {
    std::vector<uint32_t> ids(num_layers);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  absl::StatusOr<std::vector<uint32_t>> ids =
      Numbers("layer_ids", {num_layers}, 0, std::numeric_limits<int32_t>::max());
  if (!ids.ok()) return ids.status();
  for (size_t l = 1; l < ids->size(); ++l) {
    if ((*ids)[l] <= (*ids)[l - 1]) {
      return Invalid(Where("layer_ids"), "[", l, "]: expected more than ", (*ids)[l - 1],
                     " (ascending), got ", (*ids)[l]);
    }
  }
  return ids;
}

}  // namespace relibra

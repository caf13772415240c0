// The arrays of a trace archive, each checked for shape and range as it is read.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_NPZ_FIELDS_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_NPZ_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/trace/npz.h"

namespace relibra {

class NpzFields {
 public:
  // `archive` and `name` (the file, which starts every error) must outlive it.
  NpzFields(const NpzArchive& archive, absl::string_view name) : archive_(archive), name_(name) {}

  absl::string_view name() const { return name_; }
  bool Has(absl::string_view field) const { return archive_.Find(field) != nullptr; }
  // "file: field".
  std::string Where(absl::string_view field) const;

  // The array; an error when it is absent or has not so many dimensions. `dimensions` names them,
  // e.g. "[M, L, S, E]", for the message.
  absl::StatusOr<const NpyArray*> Array(absl::string_view field, size_t rank,
                                        absl::string_view dimensions) const;
  // Integers from `least` to `most` in an array of exactly this shape.
  absl::StatusOr<std::vector<uint32_t>> Numbers(absl::string_view field,
                                                absl::Span<const size_t> shape, uint32_t least,
                                                uint32_t most) const;
  // An array of one number, whatever its dimensions.
  absl::StatusOr<uint32_t> Scalar(absl::string_view field, uint32_t least, uint32_t most) const;
  // layer_ids, ascending, or 0..num_layers-1 where absent.
  absl::StatusOr<std::vector<uint32_t>> LayerIds(size_t num_layers) const;

 private:
  const NpzArchive& archive_;
  const absl::string_view name_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_NPZ_FIELDS_H_

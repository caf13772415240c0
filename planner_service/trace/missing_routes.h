// Stands in for routes that were not recorded.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_MISSING_ROUTES_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_MISSING_ROUTES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "planner_service/core/loads.h"

namespace relibra {

// Adds unrouted[m][l][s] x top_k (token, choice) pairs to the loads of every (micro-batch, layer,
// source rank), spread over the experts as the layer's recorded pairs of all micro-batches and
// ranks are. Whole pairs that add up exactly: what rounding withholds from an expert in one place
// it gets in the next. Deterministic; ties go to the lowest expert. A layer without any recorded
// pair is a dense layer and gets nothing. INVALID_ARGUMENT naming layer, micro-batch, rank and
// expert when a load overflows 32 bits (loads are then partly changed), or when `unrouted` has not
// the loads' shape. O(M L S E).
absl::Status SpreadMissingRoutes(absl::Span<const uint32_t> unrouted, int top_k, Loads& loads);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_MISSING_ROUTES_H_

// The .npz forms of traces (see trace_file.h).
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_NPZ_TRACE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_NPZ_TRACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner_service/trace/npz.h"
#include "planner_service/trace/trace.h"
#include "planner_service/trace/trace_file.h"

namespace relibra {

absl::StatusOr<Trace> TraceOfNpz(const NpzArchive& archive, absl::string_view name,
                                 const TraceReadOptions& options);

absl::StatusOr<std::string> NpzOfTrace(const Trace& trace);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_NPZ_TRACE_H_

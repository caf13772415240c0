// What a report shows, as the JSON that its page reads.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_REPORT_DATA_H_
#define RELIBRA_PLANNER_SERVICE_CLI_REPORT_DATA_H_

#include <cstdint>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "planner_service/cli/report/figures.h"
#include "planner_service/cli/simulation.h"

namespace relibra::cli {

// {"type": "u2" or "u4", "base64": ...}: unsigned integers, little-endian, in two bytes each where
// all of them fit, else in four.
nlohmann::ordered_json PackedIntegers(absl::Span<const uint32_t> values);

// Shape and setting of the batch; "policies": FiguresOf each with "imbalance_by_cell" [L * M];
// "rank_loads" (PackedIntegers), "expert_loads", "expert_peaks", "expert_copied", "copies", "moves"
// and "limits", the arrays of ReportFigures. Ratios are rounded to 1e-5. `figures`: of relibra's
// plan.
nlohmann::ordered_json ReportData(const SimulationFlags& flags, const SimulationSetup& setup,
                                  const Simulation& simulation, const ReportFigures& figures);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_REPORT_DATA_H_

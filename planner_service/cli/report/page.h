// The report's page: one HTML file that needs nothing else.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_H_
#define RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace relibra::cli {

// Plotly's plotly.min.js: the text of `path` or, where that is empty, of
// ../share/relibra/plotly.min.js beside the folder of this program. NOT_FOUND when there is none,
// INVALID_ARGUMENT when it is not Plotly's or cannot stand inside a page.
absl::StatusOr<std::string> ReadPlotly(const std::string& path);

// The page that shows `data` (planner_service/cli/report/data.h) with this plotting library
// inlined.
std::string ReportPage(const nlohmann::ordered_json& data, absl::string_view plotly);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_H_

#include "planner_service/cli/report/page.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner_service/cli/report/page_parts.h"
#include "planner_service/trace/file_bytes.h"

namespace relibra::cli {
namespace {

// Where the build, and an installation, put it.
std::string PlotlyBesideThisProgram() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share" / "relibra" / "plotly.min.js";
}

}  // namespace

absl::StatusOr<std::string> ReadPlotly(const std::string& path) {
  const std::string file = path.empty() ? PlotlyBesideThisProgram() : path;
  absl::StatusOr<std::string> text = ReadFileBytes(file);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(text.status().message(),
                                            "; run scripts/setup.sh and build again, or name "
                                            "Plotly's plotly.min.js with --plotly"));
  }
  if (!text.ok()) return text.status();
  if (!absl::StrContains(*text, "plotly.js")) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": expected Plotly's plotly.min.js, found no \"plotly.js\" in it"));
  }
  if (absl::StrContains(*text, "</script")) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": holds \"</script\", which would end it inside a page"));
  }
  return text;
}

std::string ReportPage(const nlohmann::ordered_json& data, absl::string_view plotly) {
  // File names may hold any bytes; "<" could end the script element that the data stands in.
  const std::string json = absl::StrReplaceAll(
      data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
      {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kPageHtml, {{"{{page.css}}", kPageCss},
                                         {"{{page.js}}", kPageJs},
                                         {"{{plotly}}", plotly},
                                         {"{{data}}", json}});
}

}  // namespace relibra::cli

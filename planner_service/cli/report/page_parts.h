// The texts of page.html, page.css and page.js, which the build puts into the program.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_PARTS_H_
#define RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_PARTS_H_

namespace relibra::cli {

extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageJs[];

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_REPORT_PAGE_PARTS_H_

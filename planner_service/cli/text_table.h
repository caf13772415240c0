// Tables for people: the first column to the left, the others to the right.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_TEXT_TABLE_H_
#define RELIBRA_PLANNER_SERVICE_CLI_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace relibra::cli {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  // Rows shorter than the header end in empty cells.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Header, a line, rows; columns two spaces apart, no trailing blanks, ending in a newline. Widths
  // are counted in UTF-8 characters.
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_TEXT_TABLE_H_

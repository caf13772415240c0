#include "planner_service/cli/text_table.h"

#include "gtest/gtest.h"

namespace relibra::cli {
namespace {

TEST(TextTableTest, AlignsTheFirstColumnLeftAndTheOthersRight) {
  TextTable table({"policy", "ms", "x"});
  table.AddRow({"none", "1163.7", "1"});
  table.AddRow({"a", "2"});
  EXPECT_EQ(table.ToString(),
            "policy      ms  x\n"
            "-----------------\n"
            "none    1163.7  1\n"
            "a            2\n");
}

TEST(TextTableTest, CountsCharactersNotBytes) {
  TextTable table({"a", "b"});
  table.AddRow({"µ…", "1"});
  table.AddRow({"xx", "22"});
  EXPECT_EQ(table.ToString(),
            "a    b\n"
            "------\n"
            "µ…   1\n"
            "xx  22\n");
}

}  // namespace
}  // namespace relibra::cli

#include "planner_service/cli/report/page.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner_service/cli/report/data.h"

namespace relibra::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Written(const std::string& name, const std::string& text) {
  std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(PackedIntegersTest, TakeTwoBytesEachWhereTheyFit) {
  // 1, 513 = 0x0201 and 65535 are the bytes 01 00 01 02 ff ff.
  EXPECT_EQ(PackedIntegers({1, 513, 65535}).dump(), R"({"type":"u2","base64":"AQABAv//"})");
  EXPECT_EQ(PackedIntegers({}).dump(), R"({"type":"u2","base64":""})");
}

TEST(PackedIntegersTest, TakeFourBytesEachElse) {
  // 65536 and 0x04030201 are the bytes 00 00 01 00 01 02 03 04.
  EXPECT_EQ(PackedIntegers({65536, 0x04030201}).dump(), R"({"type":"u4","base64":"AAABAAECAwQ="})");
}

TEST(ReportPageTest, HoldsTheDataAndTheLibrary) {
  const std::string page = ReportPage({{"trace", "a.npz"}}, "/* plotly.js */");
  EXPECT_THAT(page, HasSubstr(R"({"trace":"a.npz"}</script>)"));
  EXPECT_THAT(page, HasSubstr("<script>/* plotly.js */</script>"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(ReportPageTest, LetsNoFileNameEndTheScriptOrTheEncoding) {
  const std::string page = ReportPage({{"trace", "</script><b>{{plotly}}\xff"}}, "/* library */");
  EXPECT_THAT(page, HasSubstr(R"("\u003c/script>\u003cb>{{plotly}})"));
  EXPECT_THAT(page, Not(HasSubstr("\xff\"}")));
}

TEST(ReadPlotlyTest, NamesTheFileThatIsMissingAndTheRemedy) {
  const auto text = ReadPlotly("/nowhere/plotly.min.js");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(text.status().message(), HasSubstr("/nowhere/plotly.min.js"));
  EXPECT_THAT(text.status().message(), HasSubstr("--plotly"));
}

TEST(ReadPlotlyTest, RefusesWhatIsNotPlotly) {
  const std::string other = Written("other.js", "alert(1)");
  EXPECT_THAT(ReadPlotly(other).status().message(), HasSubstr(other));
  const std::string broken = Written("broken.js", "/* plotly.js */ '</script>'");
  EXPECT_THAT(ReadPlotly(broken).status().message(), HasSubstr("</script"));
}

TEST(ReadPlotlyTest, ReadsTheTextAsItIs) {
  const std::string text = "/* plotly.js v1 */\nlet a;\n";
  EXPECT_EQ(ReadPlotly(Written("plotly.min.js", text)).value(), text);
}

}  // namespace
}  // namespace relibra::cli

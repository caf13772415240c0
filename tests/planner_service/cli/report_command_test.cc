// `relibra report` over real files: what the page embeds, and what the command says.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/planner_service/cli/run_relibra.h"

namespace relibra::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::string kCases = RELIBRA_SOURCE_DIR "/tests/planner_service/cli/data/cases/";
const std::vector<std::string> kHotterThanANode = {
    "--trace",         kCases + "hotter-than-a-node.json",
    "--nodes",         "2",
    "--gpus-per-node", "2",
    "--replica-slots", "1",
    "--bridges",       "0"};

Ran Relibra(const std::string& command, std::vector<std::string> words,
            const std::vector<std::string>& more) {
  words.insert(words.begin(), command);
  words.insert(words.end(), more.begin(), more.end());
  return RunRelibra(words);
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A file that passes for Plotly, so that the test needs none.
std::string SmallPlotly() {
  std::string path = ScratchFile("plotly.min.js");
  std::ofstream(path) << "/* plotly.js */";
  return path;
}

json DataOf(const std::string& page) {
  const std::string start = R"(id="report-data">)";
  const size_t from = page.find(start) + start.size();
  return json::parse(page.substr(from, page.find("</script>", from) - from));
}

json Report(const std::vector<std::string>& words) {
  const std::string output = ScratchFile("report.html");
  const Ran ran = Relibra("report", words, {"--plotly", SmallPlotly(), "-o", output});
  EXPECT_EQ(ran.exit_status, 0) << ran.err;
  return DataOf(ReadText(output));
}

// One expert takes all 100 pairs, on 2 nodes of 2 ranks with one slot each and no bridges: before,
// rank 0 computes all of them; at best its copy on rank 1 takes half. Each is twice the mean of 25,
// which no choice of homes changes: what limits is the hottest expert alone, by 100 %.
TEST(ReportCommandTest, EmbedsTheFiguresOfAHandWorkedBatch) {
  const json data = Report(kHotterThanANode);
  EXPECT_EQ(data["trace"], "hotter-than-a-node.json");
  EXPECT_EQ(data["pairs"], 100);
  EXPECT_EQ(data["lower_bound"], 2);
  EXPECT_EQ(data["layer_ids"], json::array({0}));
  ASSERT_EQ(data["policies"].size(), 4u);
  EXPECT_EQ(data["policies"][0]["policy"], "none");
  EXPECT_EQ(data["policies"][0]["imbalance_by_cell"], json({4.0}));
  EXPECT_EQ(data["policies"][2]["policy"], "relibra");
  EXPECT_EQ(data["policies"][2]["imbalance_by_cell"], json({2.0}));
  EXPECT_EQ(data["policies"][3]["imbalance_by_cell"], json({1.0}));
  // 100 0 0 0 and 50 50 0 0 as 16-bit little-endian numbers in base64.
  EXPECT_EQ(data["rank_loads"]["before"], json({{"type", "u2"}, {"base64", "ZAAAAAAAAAA="}}));
  EXPECT_EQ(data["rank_loads"]["after"], json({{"type", "u2"}, {"base64", "MgAyAAAAAAA="}}));
  EXPECT_EQ(data["expert_loads"], json({100, 0, 0, 0}));
  EXPECT_EQ(data["expert_peaks"], json({4.0, 0.0, 0.0, 0.0}));
  EXPECT_EQ(data["expert_copied"], json({1, 0, 0, 0}));
  EXPECT_EQ(data["copies"], json({{"kept", {0}}, {"fetched", {1}}}));
  EXPECT_EQ(data["moves"], json({{"inside", {0}}, {"across", {0}}, {"bridges", {0}}}));
  EXPECT_EQ(data["limits"],
            json({{"hottest_expert", {1.0}}, {"node_bound", {0.0}}, {"slots", {0.0}}}));
}

TEST(ReportCommandTest, ShowsTheFiguresThatSimulatePrints) {
  const std::vector<std::string> words = {
      "--trace", kCases + "two-layers.json", "--nodes", "1", "--gpus-per-node", "2", "--exposure",
      "0.5"};
  json shown = Report(words)["policies"];
  const Ran simulated = Relibra("simulate", words, {"--format", "json"});
  ASSERT_EQ(simulated.exit_status, 0) << simulated.err;
  for (json& policy : shown) policy.erase("imbalance_by_cell");
  EXPECT_EQ(shown, json::parse(simulated.out)["policies"]);
}

TEST(ReportCommandTest, PrintsOneLine) {
  const std::string output = ScratchFile("one-line.html");
  const Ran ran = Relibra("report", kHotterThanANode, {"--plotly", SmallPlotly(), "-o", output});
  EXPECT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.out, StartsWith(output + ": imbalance 4.0000 -> 2.0000 (eplb "));
  EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1);
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST(ReportCommandTest, WritesTheSamePageEveryTimeButForThePlanningTime) {
  json first = Report(kHotterThanANode);
  json second = Report(kHotterThanANode);
  first.erase("plan_seconds");
  second.erase("plan_seconds");
  EXPECT_EQ(first, second);
}

TEST(ReportCommandTest, SaysInOneLineWhatIsMissing) {
  const std::string output = ScratchFile("never-written.html");
  const Ran ran =
      Relibra("report", kHotterThanANode, {"--plotly", "/nowhere/plotly.min.js", "-o", output});
  EXPECT_EQ(ran.exit_status, 2);
  EXPECT_THAT(ran.err, StartsWith("relibra: /nowhere/plotly.min.js"));
  EXPECT_THAT(ran.err, HasSubstr("scripts/setup.sh"));
  EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1);
  EXPECT_FALSE(std::filesystem::exists(output));
}

TEST(ReportCommandTest, NamesTheFileItCannotWrite) {
  const Ran ran = Relibra("report", kHotterThanANode,
                          {"--plotly", SmallPlotly(), "-o", "/nowhere/report.html"});
  EXPECT_NE(ran.exit_status, 0);
  EXPECT_THAT(ran.err, HasSubstr("/nowhere/report.html"));
  EXPECT_THAT(ran.out, IsEmpty());
}

}  // namespace
}  // namespace relibra::cli

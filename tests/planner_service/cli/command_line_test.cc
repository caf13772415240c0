// What holds of every command: exit statuses, errors in one line, help.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/planner_service/cli/run_relibra.h"

namespace relibra::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::string kCases = RELIBRA_SOURCE_DIR "/tests/planner_service/cli/data/cases/";

std::string WriteScratch(const std::string& name, const std::string& text) {
  std::string path = ScratchFile(name);
  std::ofstream(path) << text;
  return path;
}

// One line on standard error, none on standard output.
void ExpectOneLineError(const Ran& ran, int exit_status, const std::string& part) {
  EXPECT_EQ(ran.exit_status, exit_status) << ran.err;
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_THAT(ran.err, StartsWith("relibra: "));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr(part));
}

std::vector<std::string> Plan(const std::string& trace, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"plan",    "--trace", trace,
                                    "--nodes", "2",       "--gpus-per-node",
                                    "2",       "-o",      ScratchFile("plan.json")};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(CommandLineTest, HelpOfEveryCommandGoesToStandardOutput) {
  const std::vector<std::vector<std::string>> commands = {
      {},       {"trace"},          {"trace", "generate"}, {"trace", "info"}, {"trace", "convert"},
      {"plan"}, {"trace", "fetch"}, {"simulate"},          {"bench"},         {"status"}};
  for (std::vector<std::string> words : commands) {
    words.emplace_back("--help");
    const Ran ran = RunRelibra(words);
    EXPECT_EQ(ran.exit_status, 0);
    EXPECT_THAT(ran.out, HasSubstr("Usage:"));
    EXPECT_THAT(ran.err, IsEmpty());
  }
}

TEST(CommandLineTest, PrintsItsVersion) {
  const Ran ran = RunRelibra({"--version"});
  EXPECT_EQ(ran.exit_status, 0);
  EXPECT_THAT(ran.out, StartsWith("relibra 0."));
}

TEST(CommandLineTest, WrongWordsEndWithStatus2) {
  ExpectOneLineError(RunRelibra({}), 2, "subcommand");
  ExpectOneLineError(RunRelibra({"balance"}), 2, "\"balance\" is no command");
  ExpectOneLineError(RunRelibra({"plan"}), 2, "required");
  ExpectOneLineError(RunRelibra({"trace"}), 2, "subcommand");
  const std::string trace = kCases + "two-nodes.json";
  ExpectOneLineError(RunRelibra(Plan(trace, {"--no-such-flag"})), 2, "--no-such-flag");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--policy", "best"})), 2,
                     "--policy: policy: expected relibra, eplb, none or ideal, got \"best\"");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--policy", "ideal"})), 2, "not a plan");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--format", "yaml"})), 2, "--format");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--effort", "slow"})), 2, "--effort");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--bridges", "-1"})), 2, "--bridges");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--max-moves", "many"})), 2, "--max-moves");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--move-cost", "nan"})), 2, "--move-cost");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--replica-slots", "-1"})), 2, "--replica-slots");
  ExpectOneLineError(RunRelibra(Plan(trace, {"--threads", "0.5"})), 2, "--threads");
  ExpectOneLineError(RunRelibra({"simulate", "--trace", trace, "--nodes", "2", "--gpus-per-node",
                                 "2", "--model", "gpt"}),
                     2, "--model: expected one of qwen3-30b-a3b");
  ExpectOneLineError(RunRelibra({"bench", "--instances", "9x9"}), 2, "--instances: expected all");
  ExpectOneLineError(RunRelibra({"bench", "--skew", "1/2"}), 2, "--skew: expected harsh, mild");
}

TEST(CommandLineTest, WrongInputEndsWithStatus2AndNamesFileFieldAndIndex) {
  ExpectOneLineError(RunRelibra(Plan("/no/such/file.json")), 2, "/no/such/file.json");
  ExpectOneLineError(RunRelibra(Plan(WriteScratch("not.json", "loads"))), 2, "not.json");
  ExpectOneLineError(RunRelibra(Plan(WriteScratch("cut.npz", "PK\x03\x04 cut"))), 2, "cut.npz");
  ExpectOneLineError(
      RunRelibra(Plan(WriteScratch(
          "ragged.json",
          R"({"num_experts": 4, "loads": [[[[1,1,1,1],[1,1,1],[1,1,1,1],[1,1,1,1]]]]})"))),
      2, "ragged.json");
  ExpectOneLineError(
      RunRelibra(Plan(WriteScratch(
          "negative.json",
          R"({"num_experts": 4, "loads": [[[[1,1,1,1],[1,-1,1,1],[1,1,1,1],[1,1,1,1]]]]})"))),
      2, "negative.json");
  ExpectOneLineError(
      RunRelibra(Plan(WriteScratch(
          "overflow.json",
          R"({"num_experts": 4, "loads": [[[[4294967295,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]]]})"))),
      2, "layer 0, micro-batch 0, expert 0");
}

TEST(CommandLineTest, ATopologyThatDoesNotFitTheTraceIsNamed) {
  const std::string trace = kCases + "two-nodes.json";  // 4 source ranks, 4 experts
  ExpectOneLineError(RunRelibra({"plan", "--trace", trace, "--nodes", "3", "--gpus-per-node", "1",
                                 "-o", ScratchFile("plan.json")}),
                     2, "two-nodes.json");
  ExpectOneLineError(RunRelibra({"plan", "--trace", trace, "--nodes", "1", "--gpus-per-node", "2",
                                 "-o", ScratchFile("plan.json")}),
                     2, "two-nodes.json");
  ExpectOneLineError(RunRelibra({"plan", "--trace", trace, "--nodes", "60000", "--gpus-per-node",
                                 "60000", "-o", ScratchFile("plan.json")}),
                     2, "at most 65535 ranks");
}

TEST(CommandLineTest, APlacementThatDoesNotFitIsNamed) {
  const std::string uneven = WriteScratch("uneven.json", R"({"homeRank": [[0,0,1,1],[0,1,2,3]]})");
  ExpectOneLineError(RunRelibra(Plan(kCases + "two-nodes.json", {"--placement", uneven})), 2,
                     "uneven.json");
}

TEST(CommandLineTest, WorkThatFailsEndsWithStatus1) {
  std::vector<std::string> words = Plan(kCases + "two-nodes.json");
  words.back() = "/no/such/folder/plan.json";
  const Ran ran = RunRelibra(words);
  EXPECT_NE(ran.exit_status, 0);
  EXPECT_THAT(ran.err, HasSubstr("/no/such/folder/plan.json"));
  ExpectOneLineError(RunRelibra({"status", "--planner", "localhost:1", "--timeout", "2"}), 1,
                     "localhost:1");
}

}  // namespace
}  // namespace relibra::cli

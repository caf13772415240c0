// `relibra plan` and `relibra simulate` over real files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner_service/core/plan_check.h"
#include "planner_service/trace/plan_file.h"
#include "planner_service/trace/plan_message.h"
#include "tests/planner_service/cli/run_relibra.h"

namespace relibra::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kCases = RELIBRA_SOURCE_DIR "/tests/planner_service/cli/data/cases/";

std::vector<std::string> AllCases() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kCases)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// The words of `command` for a trace with these nodes, GPUs and slots.
std::vector<std::string> Words(const std::string& command, const std::string& trace,
                               const json& shape, std::vector<std::string> more) {
  std::vector<std::string> words = {command,
                                    "--trace",
                                    trace,
                                    "--nodes",
                                    shape.at("nodes").dump(),
                                    "--gpus-per-node",
                                    shape.at("gpus_per_node").dump(),
                                    "--replica-slots",
                                    shape.at("replica_slots").dump()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class CaseTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CaseTest, IsPlannedWithinTheRulesAndAsItsSummarySays) {
  const json shape = ReadJson(GetParam());
  const std::string output = ScratchFile("case-plan.json");
  const Ran ran =
      RunRelibra(Words("plan", GetParam(), shape, {"--verify", "--json", "-o", output}));
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_THAT(ran.err, IsEmpty());
  const json summary = json::parse(ran.out);
  EXPECT_NEAR(summary.at("imbalanceBefore"), shape.at("expect").at("imbalance_before"), 1e-6);
  EXPECT_LE(summary.at("imbalanceAfter"), summary.at("imbalanceBefore").get<double>() + 1e-9);
  const json plan = ReadJson(output);
  EXPECT_EQ(plan.at("summary"), summary);
  EXPECT_EQ(plan.at("topology").at("nodes"), shape.at("nodes"));
  EXPECT_EQ(plan.at("layers").size(), shape.at("loads").at(0).size());
  const auto message = ReadPlanFile(output);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(PlanFromMessage(*message, output).ok());
}

INSTANTIATE_TEST_SUITE_P(AllCases, CaseTest, ::testing::ValuesIn(AllCases()), [](const auto& info) {
  std::string name = info.param.substr(kCases.size());
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

// 2 x 2 ranks, 16 experts, 3 layers, 4 micro-batches.
class GeneratedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    trace_ = ScratchFile("generated.npz");
    const Ran ran = RunRelibra(
        {"trace",   "generate", "--nodes",  "2",   "--gpus-per-node", "2", "--experts", "16",
         "--top-k", "2",        "--layers", "3",   "--micro-batches", "4", "--tokens",  "512",
         "--seed",  "5",        "-o",       trace_});
    ASSERT_EQ(ran.exit_status, 0) << ran.err;
  }

  Ran Plan(std::vector<std::string> more) {
    return RunRelibra(Words("plan", trace_, shape_, std::move(more)));
  }

  std::string trace_;
  const json shape_ = {{"nodes", 2}, {"gpus_per_node", 2}, {"replica_slots", 2}};
};

TEST_F(GeneratedTest, TheSameWordsMakeTheSamePlanWhateverTheThreads) {
  std::vector<std::string> digests;
  for (const char* threads : {"1", "3", "1"}) {
    const std::string output = ScratchFile("threads.json");
    ASSERT_EQ(Plan({"--threads", threads, "-o", output}).exit_status, 0);
    digests.push_back(ReadJson(output).at("digest"));
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST_F(GeneratedTest, JsonAndProtobufHoldTheSamePlan) {
  const std::string as_json = ScratchFile("same.json");
  const std::string as_protobuf = ScratchFile("same.pb");
  ASSERT_EQ(Plan({"-o", as_json, "--job", "demo", "--step", "17"}).exit_status, 0);
  ASSERT_EQ(
      Plan({"--format", "pb", "-o", as_protobuf, "--job", "demo", "--step", "17"}).exit_status, 0);
  auto a = ReadPlanFile(as_json);
  auto b = ReadPlanFile(as_protobuf);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->job(), "demo");
  EXPECT_EQ(a->step(), 17u);
  a->mutable_summary()->clear_plan_seconds();
  b->mutable_summary()->clear_plan_seconds();
  EXPECT_EQ(a->SerializeAsString(), b->SerializeAsString());
}

TEST_F(GeneratedTest, SplitsCanBeLeftOut) {
  const std::string output = ScratchFile("splits.json");
  ASSERT_EQ(Plan({"-o", output}).exit_status, 0);
  EXPECT_FALSE(ReadJson(output).at("layers").at(0).at("microBatches").at(0).at("splits").empty());
  ASSERT_EQ(Plan({"--no-splits", "-o", output}).exit_status, 0);
  for (const json& layer : ReadJson(output).at("layers")) {
    for (const json& micro_batch : layer.at("microBatches")) {
      EXPECT_TRUE(micro_batch.value("splits", json::array()).empty());
    }
  }
}

TEST_F(GeneratedTest, APlanIsThePlacementOfTheNextOne) {
  const std::string first = ScratchFile("first.json");
  const std::string second = ScratchFile("second.json");
  ASSERT_EQ(Plan({"-o", first}).exit_status, 0);
  const Ran ran = Plan({"--placement", first, "--verify", "--json", "-o", second});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const json before = ReadJson(first).at("summary");
  const json after = json::parse(ran.out);
  EXPECT_LE(after.at("imbalanceAfter"), before.at("imbalanceBefore").get<double>());
}

TEST_F(GeneratedTest, TheNonePolicyMovesAndCopiesNothing) {
  const std::string output = ScratchFile("none.json");
  const Ran ran = Plan({"--policy", "none", "--verify", "--json", "-o", output});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const json summary = json::parse(ran.out);
  EXPECT_EQ(summary.at("moves"), "0");
  EXPECT_EQ(summary.at("replicas"), "0");
  EXPECT_EQ(summary.at("imbalanceAfter"), summary.at("imbalanceBefore"));
}

TEST_F(GeneratedTest, SimulateComparesThePoliciesInTheOrderAskedFor) {
  const Ran ran = RunRelibra(Words("simulate", trace_, shape_,
                                   {"--format", "json", "--policies", "relibra,ideal,none,eplb"}));
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const json result = json::parse(ran.out);
  std::vector<std::string> names;
  for (const json& policy : result.at("policies")) names.push_back(policy.at("policy"));
  EXPECT_THAT(names, ElementsAre("relibra", "ideal", "none", "eplb"));
  const json& relibra = result.at("policies").at(0);
  const json& ideal = result.at("policies").at(1);
  const json& none = result.at("policies").at(2);
  EXPECT_EQ(result.at("top_k"), 2);
  EXPECT_DOUBLE_EQ(ideal.at("imbalance"), 1);
  EXPECT_DOUBLE_EQ(ideal.at("throughput_vs_ideal"), 1);
  EXPECT_DOUBLE_EQ(none.at("throughput_vs_none"), 1);
  EXPECT_EQ(none.at("copies"), 0);
  EXPECT_LT(relibra.at("imbalance"), none.at("imbalance"));
  EXPECT_NEAR(
      relibra.at("step_seconds"),
      relibra.at("compute_seconds").get<double>() + relibra.at("all_to_all_seconds").get<double>() +
          relibra.at("copy_seconds").get<double>() + relibra.at("move_seconds").get<double>(),
      1e-12);
}

TEST_F(GeneratedTest, SimulatePrintsAnAlignedTable) {
  const Ran ran = RunRelibra(Words("simulate", trace_, shape_, {"--verify"}));
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  for (const char* part : {"policy", "imbalance", "none", "eplb", "relibra", "ideal", "% ideal"}) {
    EXPECT_THAT(ran.out, HasSubstr(part));
  }
}

TEST_F(GeneratedTest, TraceInfoCountsWhatIsThere) {
  const Ran ran = RunRelibra({"trace", "info", trace_, "--json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const json facts = json::parse(ran.out);
  EXPECT_EQ(facts.at("form"), "counts");
  EXPECT_EQ(facts.at("experts"), 16);
  EXPECT_EQ(facts.at("source_ranks"), 4);
  EXPECT_EQ(facts.at("pairs"), 3 * 4 * 4 * 512 * 2);
}

TEST_F(GeneratedTest, ConvertingKeepsTheLoads) {
  const std::string converted = ScratchFile("converted.json");
  ASSERT_EQ(RunRelibra({"trace", "convert", trace_, "-o", converted}).exit_status, 0);
  const std::string a = ScratchFile("a.json");
  const std::string b = ScratchFile("b.json");
  ASSERT_EQ(Plan({"-o", a}).exit_status, 0);
  ASSERT_EQ(RunRelibra(Words("plan", converted, shape_, {"-o", b})).exit_status, 0);
  EXPECT_EQ(ReadJson(a).at("digest"), ReadJson(b).at("digest"));
}

TEST_F(GeneratedTest, SequencesWithPlacesPlanAsTheirCounts) {
  const std::string sequences = ScratchFile("sequences.npz");
  const std::vector<std::string> shape = {
      "--nodes",  "2",      "--gpus-per-node", "2", "--experts", "16",  "--top-k", "2",
      "--layers", "3",      "--micro-batches", "4", "--tokens",  "512", "--seed",  "5",
      "-o",       sequences};
  std::vector<std::string> words = {"trace", "generate", "--sequences"};
  words.insert(words.end(), shape.begin(), shape.end());
  ASSERT_EQ(RunRelibra(words).exit_status, 0);
  const std::string a = ScratchFile("a.json");
  const std::string b = ScratchFile("b.json");
  ASSERT_EQ(Plan({"-o", a}).exit_status, 0);
  const Ran ran = RunRelibra(Words("plan", sequences, shape_, {"-o", b}));
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  EXPECT_EQ(ReadJson(a).at("digest"), ReadJson(b).at("digest"));
}

TEST(BenchTest, PrintsARowForEachPolicyOfEachInstance) {
  const Ran ran =
      RunRelibra({"bench", "--instances", "1x8/128/16", "--seeds", "1", "--layers", "1", "--skew",
                  "harsh", "--policies", "none,eplb,fast", "--format", "json"});
  ASSERT_EQ(ran.exit_status, 0) << ran.err;
  const json rows = json::parse(ran.out).at("rows");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("policy"), "none");
  EXPECT_GT(rows[0].at("imbalance"), rows[1].at("imbalance"));
  EXPECT_GT(rows[1].at("imbalance"), rows[2].at("imbalance"));
  EXPECT_LE(rows[2].at("imbalance"), 1.01);
}

}  // namespace
}  // namespace relibra::cli

#include "planner_service/trace/plan_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "nlohmann/json.hpp"

namespace relibra {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Sets every field there is, whatever fields the API has, each to another value.
void Fill(Message& message, int& counter) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    for (int times = 0; times < (field->is_repeated() ? 2 : 1); ++times) {
      ++counter;
      const bool many = field->is_repeated();
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          Fill(many ? *reflection->AddMessage(&message, field)
                    : *reflection->MutableMessage(&message, field),
               counter);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          many ? reflection->AddUInt32(&message, field, counter)
               : reflection->SetUInt32(&message, field, counter);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          reflection->SetUInt64(&message, field, (uint64_t{1} << 60) + counter);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          reflection->SetDouble(&message, field, 1.0 / counter);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          reflection->SetString(&message, field, "\"ä\n\\" + std::to_string(counter));
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          reflection->SetBool(&message, field, true);
          break;
        default:
          FAIL() << "a field of a kind that this test does not know: " << field->full_name();
      }
    }
  }
}

TEST(PlanFile, ProtobufsOwnParserReadsEveryFieldOfTheJson) {
  v1::Plan plan;
  int counter = 0;
  Fill(plan, counter);
  v1::Plan read;
  const auto status = google::protobuf::util::JsonStringToMessage(PlanToJson(plan), &read);
  ASSERT_TRUE(status.ok()) << status.ToString() << PlanToJson(plan);
  MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(plan, read)) << difference;
}

TEST(PlanFile, DefaultsArePrintedAsTheDesignShowsThem) {
  v1::Plan plan;
  plan.mutable_topology();
  plan.mutable_summary();
  v1::MicroBatchPlan* micro_batch = plan.add_layers()->add_micro_batches();
  micro_batch->add_replicas();
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["job"], "");
  EXPECT_EQ(json["topology"]["replicaSlots"], 0);
  EXPECT_EQ(json["layers"][0]["moves"], nlohmann::json::array());
  EXPECT_EQ(json["layers"][0]["homeRank"], nlohmann::json::array());
  EXPECT_EQ(json["layers"][0]["microBatches"][0]["splits"], nlohmann::json::array());
  EXPECT_EQ(json["layers"][0]["microBatches"][0]["replicas"][0],
            nlohmann::json::parse(R"({"expert": 0, "rank": 0, "slot": 0, "tokens": 0})"));
  EXPECT_EQ(json["summary"]["imbalanceAfter"], 0);
}

TEST(PlanFile, NumbersThatAreNoNumbersFollowTheMapping) {
  v1::Plan plan;
  plan.mutable_summary()->set_lower_bound(std::numeric_limits<double>::quiet_NaN());
  plan.mutable_summary()->set_imbalance_before(std::numeric_limits<double>::infinity());
  EXPECT_THAT(PlanToJson(plan), AllOf(HasSubstr("\"lowerBound\": \"NaN\""),
                                      HasSubstr("\"imbalanceBefore\": \"Infinity\"")));
}

TEST(PlanFile, BothFormatsComeBackFromAFile) {
  v1::Plan plan;
  int counter = 0;
  Fill(plan, counter);
  for (PlanFormat format : {PlanFormat::kJson, PlanFormat::kProtobuf}) {
    const std::string path = testing::TempDir() + "plan_file_test";
    ASSERT_TRUE(WritePlanFile(plan, format, path).ok());
    absl::StatusOr<v1::Plan> read = ReadPlanFile(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(MessageDifferencer::Equals(plan, *read));
  }
}

TEST(PlanFile, WhatIsNoPlanIsRefusedInOneLineThatNamesTheFile) {
  for (const char* text : {"", "{", "{}}", "[]", "hello", "{\"layers\": 3}", "{\"job\": 1, }",
                           "{\"layers\": [{\"homeRank\": [-1]}]}", "{\"nonsense\": 1}",
                           "{\"step\": 1.5}", "{\"step\": 4294967296}"}) {
    absl::StatusOr<v1::Plan> plan = ParsePlan(text, "dir/p.json");
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(plan.status().message()),
                AllOf(StartsWith("dir/p.json: not a plan: "), Not(HasSubstr("\n"))));
  }
}

TEST(PlanFile, AFileThatCannotBeReadOrWrittenIsNamed) {
  EXPECT_EQ(ReadPlanFile("/nowhere/p").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadPlanFile("/nowhere/p").status().message()),
              StartsWith("/nowhere/p: cannot be opened"));
  EXPECT_THAT(std::string(ReadPlanFile("/").status().message()), HasSubstr("got a folder"));
  EXPECT_THAT(std::string(WritePlanFile({}, PlanFormat::kJson, "/nowhere/p").message()),
              StartsWith("/nowhere/p: cannot be created"));
  EXPECT_THAT(std::string(WritePlanFile({}, PlanFormat::kJson, "/dev/full").message()),
              StartsWith("/dev/full: cannot be written"));
}

}  // namespace
}  // namespace relibra

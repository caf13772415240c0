// The real binary: its words, ports, signals, metrics, health and reflection.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "relibra/v1/planner.grpc.pb.h"
#include "tests/planner_service/server/planner_process.h"
#include "tests/planner_service/server/test_planner.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFreePorts = {"--listen", "127.0.0.1:0", "--metrics-address",
                                             "127.0.0.1:0"};

std::vector<std::string> With(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::shared_ptr<grpc::Channel> ChannelTo(const PlannerProcess& planner) {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", planner.port()),
                             grpc::InsecureChannelCredentials());
}

TEST(PlannerBinaryTest, HelpTellsEveryFlagWithItsUnitAndDefault) {
  PlannerProcess planner({"--help"});
  EXPECT_EQ(planner.WaitForExit(), 0);
  for (const char* flag :
       {"--listen HOST:PORT=127.0.0.1:7070", "--metrics-address HOST:PORT=127.0.0.1:7071",
        "--port-file FILE", "--insecure", "--planning-threads COUNT=0", "--stream-threads COUNT=0",
        "--max-jobs COUNT=", "--max-message-bytes BYTES=", "--max-step-bytes BYTES=",
        "--max-job-bytes BYTES=", "--max-memory-bytes BYTES=", "--keep-steps COUNT=",
        "--drain-seconds SECONDS", "--log-level"}) {
    EXPECT_THAT(planner.output(), HasSubstr(flag));
  }
}

TEST(PlannerBinaryTest, EndsWith2AndOneLineForWrongWords) {
  const std::pair<std::vector<std::string>, const char*> kWrong[] = {
      {{"--no-such-flag"}, "--no-such-flag"},
      {{"--listen", "nonsense"}, "--listen: expected HOST:PORT"},
      {{"--listen", "127.0.0.1:99999"}, "--listen: expected HOST:PORT"},
      {{"--listen", "0.0.0.0:0"}, "--insecure"},
      {{"--listen", "127.0.0.1:0", "--metrics-address", "0.0.0.0:0"}, "--metrics-address"},
      {{"--max-jobs", "0"}, "--max-jobs: expected at least 1"},
      {{"--max-jobs", "many"}, "--max-jobs"},
      {{"--keep-steps", "-1"}, "--keep-steps"},
      {{"--planning-threads", "-1"}, "--planning-threads"},
      {{"--max-message-bytes", "4000000000"}, "--max-message-bytes"},
  };
  for (const auto& [words, named] : kWrong) {
    PlannerProcess planner(words);
    EXPECT_EQ(planner.WaitForExit(), 2) << named;
    EXPECT_THAT(planner.output(), HasSubstr(named));
    EXPECT_EQ(std::count(planner.output().begin(), planner.output().end(), '\n'), 1)
        << planner.output();
  }
}

TEST(PlannerBinaryTest, EndsWith1WhenItsPortIsTaken) {
  PlannerProcess first(kFreePorts);
  ASSERT_TRUE(first.WaitUntilServing());
  PlannerProcess second(
      {"--listen", absl::StrCat("127.0.0.1:", first.port()), "--metrics-address", ""});
  EXPECT_EQ(second.WaitForExit(), 1);
  EXPECT_THAT(second.output(), HasSubstr("--listen: cannot listen at"));
  PlannerProcess third({"--listen", "127.0.0.1:0", "--metrics-address",
                        absl::StrCat("127.0.0.1:", first.metrics_port())});
  EXPECT_EQ(third.WaitForExit(), 1);
  EXPECT_THAT(third.output(), HasSubstr("--metrics-address: cannot listen at"));
}

TEST(PlannerBinaryTest, WritesThePortsThatItChose) {
  std::string folder = testing::TempDir() + "relibra_ports_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/ports";
  PlannerProcess planner(With(kFreePorts, {"--port-file", path}));
  ASSERT_TRUE(planner.WaitUntilServing());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(),
            absl::StrCat("grpc ", planner.port(), "\nmetrics ", planner.metrics_port(), "\n"));
  std::filesystem::remove_all(folder);
}

TEST(PlannerBinaryTest, DrainsOnSigtermAndEndsWith0) {
  for (int signal : {SIGTERM, SIGINT}) {
    PlannerProcess planner(kFreePorts);
    ASSERT_TRUE(planner.WaitUntilServing());
    auto stub = v1::Planner::NewStub(ChannelTo(planner));
    {
      grpc::ClientContext call;
      v1::RegisterJobRequest request;
      *request.mutable_spec() = SmallJob("demo");
      v1::RegisterJobResponse response;
      ASSERT_TRUE(stub->RegisterJob(&call, request, &response).ok());
    }
    grpc::ClientContext call;
    v1::WatchPlansRequest request;
    request.set_job("demo");
    auto watch = stub->WatchPlans(&call, request);
    watch->WaitForInitialMetadata();
    planner.Signal(signal);
    v1::PlanUpdate update;
    EXPECT_FALSE(watch->Read(&update));
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    // A client that rests in no call does not see the planner's goodbye; the planner would wait for
    // it to hang up.
    watch.reset();
    stub.reset();
    EXPECT_EQ(planner.WaitForExit(), 0);
    EXPECT_THAT(planner.output(), HasSubstr("event=draining"));
    EXPECT_THAT(planner.output(), HasSubstr("event=stopped"));
  }
}

// Calls a method with the bytes of one message; the bytes of the answer. Debian ships neither the
// health nor the reflection protocol's headers, so their few bytes are written out.
std::string CallRaw(const PlannerProcess& planner, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(ChannelTo(planner));
  grpc::ClientContext call;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer answer;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&call, method, grpc::StubOptions(), &bytes, &answer,
                 [&done](const grpc::Status& status) { done.set_value(status); });
  const grpc::Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice whole;
  EXPECT_TRUE(answer.DumpToSingleSlice(&whole).ok());
  return {reinterpret_cast<const char*>(whole.begin()), whole.size()};
}

TEST(PlannerBinaryTest, AnswersHealthChecks) {
  PlannerProcess planner(kFreePorts);
  ASSERT_TRUE(planner.WaitUntilServing());
  const std::string kServing = "\x08\x01";  // field 1, status: SERVING
  EXPECT_EQ(CallRaw(planner, "/grpc.health.v1.Health/Check", ""), kServing);
  // Field 1, service, of 18 bytes.
  EXPECT_EQ(CallRaw(planner, "/grpc.health.v1.Health/Check", "\x0a\x12relibra.v1.Planner"),
            kServing);
}

TEST(PlannerBinaryTest, ListsItsServicesByReflection) {
  PlannerProcess planner(kFreePorts);
  ASSERT_TRUE(planner.WaitUntilServing());
  // Field 7, list_services, empty.
  EXPECT_THAT(CallRaw(planner, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                      std::string("\x3a\x00", 2)),
              HasSubstr("relibra.v1.Planner"));
}

TEST(PlannerBinaryTest, ServesMetricsThatPromtoolFindsClean) {
  PlannerProcess planner(kFreePorts);
  ASSERT_TRUE(planner.WaitUntilServing());
  auto stub = v1::Planner::NewStub(ChannelTo(planner));
  {
    grpc::ClientContext call;
    v1::RegisterJobRequest request;
    *request.mutable_spec() = SmallJob("demo");
    v1::RegisterJobResponse response;
    ASSERT_TRUE(stub->RegisterJob(&call, request, &response).ok());
  }
  {
    grpc::ClientContext call;
    v1::PlanStepRequest request;
    *request.mutable_key() = Key("demo", 1);
    *request.mutable_counts() = SmallCounts(5);
    v1::PlanStepResponse response;
    ASSERT_TRUE(stub->PlanStep(&call, request, &response).ok());
  }
  const std::string answer = HttpGet(planner.metrics_port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
  for (const char* line :
       {"relibra_build_info{version=", "relibra_jobs 1\n",
        "relibra_plans_total{training_job=\"demo\"} 1\n",
        "relibra_plan_seconds_count{training_job=\"demo\"} 1\n",
        "relibra_agents_connected{training_job=\"demo\"} 0\n",
        "relibra_balancedness_after_ratio{training_job=\"demo\"}",
        "relibra_requests_total{code=\"OK\",method=\"PlanStep\"} 1\n",
        "relibra_queued_tasks{pool=\"planning\"} 0\n", "relibra_memory_bytes "}) {
    EXPECT_THAT(answer, HasSubstr(line));
  }
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "no promtool here";
  std::string path = testing::TempDir() + "relibra_metrics_XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  ASSERT_EQ(write(file, body.data(), body.size()), static_cast<ssize_t>(body.size()));
  close(file);
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace relibra::server

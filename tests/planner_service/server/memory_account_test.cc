#include "planner_service/server/memory_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

TEST(MemoryAccountTest, ChargesTheWholeChainAndGivesBack) {
  auto planner = MemoryAccount::Create("planner", "--max-memory-bytes", 100, nullptr);
  auto job = MemoryAccount::Create("job \"a\"", "--max-job-bytes", 60, planner);
  {
    absl::StatusOr<MemoryCharge> charge = job->Charge(40);
    ASSERT_TRUE(charge.ok());
    EXPECT_EQ(job->used(), 40);
    EXPECT_EQ(planner->used(), 40);
    MemoryCharge moved = *std::move(charge);
    EXPECT_EQ(planner->used(), 40);
    absl::StatusOr<MemoryCharge> more = job->Charge(20);
    ASSERT_TRUE(more.ok());
    moved.Absorb(*std::move(more));
    EXPECT_EQ(moved.bytes(), 60);
  }
  EXPECT_EQ(job->used(), 0);
  EXPECT_EQ(planner->used(), 0);
}

TEST(MemoryAccountTest, RefusesWhatAnyOfTheChainHasNoRoomForAndTakesNothing) {
  auto planner = MemoryAccount::Create("planner", "--max-memory-bytes", 100, nullptr);
  auto a = MemoryAccount::Create("job \"a\"", "--max-job-bytes", 80, planner);
  auto b = MemoryAccount::Create("job \"b\"", "--max-job-bytes", 80, planner);
  absl::StatusOr<MemoryCharge> held = a->Charge(70);
  ASSERT_TRUE(held.ok());
  const absl::Status of_job = a->Charge(11).status();
  EXPECT_TRUE(absl::IsResourceExhausted(of_job));
  EXPECT_THAT(std::string(of_job.message()), HasSubstr("job \"a\""));
  EXPECT_THAT(std::string(of_job.message()), HasSubstr("--max-job-bytes"));
  const absl::Status of_planner = b->Charge(31).status();
  EXPECT_THAT(std::string(of_planner.message()), HasSubstr("--max-memory-bytes"));
  EXPECT_FALSE(b->Charge(int64_t{1} << 60).ok());
  EXPECT_EQ(b->used(), 0);
  EXPECT_EQ(planner->used(), 70);
}

TEST(MemoryAccountTest, NeverGoesOverItsLimitHoweverManyThreadsCharge) {
  auto planner = MemoryAccount::Create("planner", "--max-memory-bytes", 1000, nullptr);
  auto job = MemoryAccount::Create("job", "--max-job-bytes", 700, planner);
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<MemoryCharge> charges;
      for (int i = 0; i < 2000; ++i) {
        absl::StatusOr<MemoryCharge> charge = job->Charge(1 + i % 13);
        if (charge.ok()) {
          charges.push_back(*std::move(charge));
        } else {
          charges.clear();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(job->used(), 0);
  EXPECT_EQ(planner->used(), 0);
}

}  // namespace
}  // namespace relibra::server

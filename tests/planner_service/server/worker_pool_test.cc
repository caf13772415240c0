#include "planner_service/server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace relibra::server {
namespace {

TEST(WorkerPoolTest, RunsTasksOfALaneInOrderOneAtATime) {
  std::vector<std::vector<int>> seen(5);
  std::atomic<int> inside[5] = {};
  {
    WorkerPool pool(4);
    for (int i = 0; i < 500; ++i) {
      const int lane = i % 5;
      pool.Submit("lane" + std::to_string(lane), [&, lane, i] {
        EXPECT_EQ(++inside[lane], 1);
        seen[lane].push_back(i);
        --inside[lane];
      });
    }
  }  // runs what was submitted to its end
  for (int lane = 0; lane < 5; ++lane) {
    ASSERT_EQ(seen[lane].size(), 100);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[lane][i], i * 5 + lane);
  }
}

TEST(WorkerPoolTest, RunsLanesSideBySide) {
  WorkerPool pool(2);
  absl::Notification other_ran;
  pool.Submit("a", [&] { other_ran.WaitForNotification(); });
  pool.Submit("b", [&] { other_ran.Notify(); });
  pool.WaitUntilIdle();
}

TEST(WorkerPoolTest, CallsEveryIndexOnceEvenWhenAllThreadsAreLoopingThemselves) {
  for (int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    constexpr int kTasks = 8;
    constexpr int kIndices = 300;
    std::vector<std::vector<std::atomic<int>>> calls(kTasks);
    for (auto& of_task : calls) of_task = std::vector<std::atomic<int>>(kIndices);
    for (int task = 0; task < kTasks; ++task) {
      pool.Submit([&, task] { pool.ParallelFor(kIndices, [&](int i) { ++calls[task][i]; }); });
    }
    pool.WaitUntilIdle();
    for (const auto& of_task : calls) {
      for (const std::atomic<int>& count : of_task) EXPECT_EQ(count, 1);
    }
  }
}

TEST(WorkerPoolTest, LoopsInsideLoops) {
  WorkerPool pool(3);
  std::atomic<int> calls = 0;
  pool.ParallelFor(10, [&](int) { pool.ParallelFor(10, [&](int) { ++calls; }); });
  EXPECT_EQ(calls, 100);
  pool.ParallelFor(0, [&](int) { ++calls; });
  EXPECT_EQ(calls, 100);
}

TEST(WorkerPoolTest, CountsWhatWaits) {
  WorkerPool pool(1);
  absl::Notification begun;
  absl::Notification go_on;
  pool.Submit("a", [&] {
    begun.Notify();
    go_on.WaitForNotification();
  });
  begun.WaitForNotification();
  pool.Submit("a", [] {});
  pool.Submit([] {});
  EXPECT_EQ(pool.queued(), 2);
  go_on.Notify();
  pool.WaitUntilIdle();
  EXPECT_EQ(pool.queued(), 0);
}

}  // namespace
}  // namespace relibra::server

#include "planner_service/cli/parallel.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"
#include "planner_service/core/planner.h"

namespace relibra {
namespace {

TEST(ThreadPoolTest, CallsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    const ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int n : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(n);
      pool(n, [&](int i) { ++calls[i]; });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    }
  }
}

// Ends only if three threads are in the loop at once.
TEST(ThreadPoolTest, RunsTasksAtTheSameTime) {
  const ThreadPool pool(3);
  auto* barrier = new absl::Barrier(3);
  pool(3, [&](int) {
    if (barrier->Block()) delete barrier;
  });
}

TEST(ThreadPoolTest, ServesManyShortLoopsInARow) {
  const ThreadPool pool(4);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 2000; ++round) pool(3, [&](int) { ++calls; });
  EXPECT_EQ(calls, 6000);
}

TEST(ThreadPoolTest, LetsSeveralCallersTakeTurns) {
  const ThreadPool pool(2);
  std::atomic<int> calls = 0;
  std::vector<std::thread> callers;
  callers.reserve(3);
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) pool(5, [&](int) { ++calls; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 1500);
}

TEST(ThreadPoolTest, IsAParallelFor) {
  const ThreadPool pool(2);
  const ParallelFor parallel_for = pool;
  std::atomic<int> sum = 0;
  parallel_for(10, [&](int i) { sum += i; });
  EXPECT_EQ(sum, 45);
}

}  // namespace
}  // namespace relibra

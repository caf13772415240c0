// Threads to lend to the planning core.
//
//   ThreadPool pool(4);
//   PlanStep(loads, topology, homes, options, pool);
#ifndef RELIBRA_PLANNER_SERVICE_CLI_PARALLEL_H_
#define RELIBRA_PLANNER_SERVICE_CLI_PARALLEL_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace relibra {

// A ParallelFor (planner_service/core/planner.h) over threads that live as long as the pool. One
// loop at a time: a thread that calls while another loop runs waits; a task must not call.
class ThreadPool {
 public:
  // `threads` >= 1, the calling thread among them; 0: as many as the machine runs at once.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i) for every i in [0, n) on all threads, the caller's among them; returns when all
  // are done. Const so that a pool can stand for a function reference.
  void operator()(int n, absl::FunctionRef<void(int)> task) const;

 private:
  // One operator() call: whoever takes part draws the next i.
  struct Loop {
    Loop(int n, absl::FunctionRef<void(int)> task) : n(n), task(task) {}
    const int n;
    const absl::FunctionRef<void(int)> task;
    std::atomic<int> next{0};
    int inside = 0;  // workers that may still draw; guarded by the pool's mutex
  };

  struct State {
    absl::Mutex one_loop;  // held over a whole call; taken before `mutex`
    absl::Mutex mutex;
    Loop* loop ABSL_GUARDED_BY(mutex) = nullptr;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  static void Draw(Loop& loop);
  static void Work(State& state);

  const std::unique_ptr<State> state_;
  std::vector<std::thread> workers_;
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CLI_PARALLEL_H_

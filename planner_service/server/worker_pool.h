// Threads for work that must not run on the threads of gRPC.
//
//   WorkerPool pool(8);
//   pool.Submit("demo", [&] { ... pool.ParallelFor(n, task); ... });
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_WORKER_POOL_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_WORKER_POOL_H_

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace relibra::server {

// Any thread may call.
class WorkerPool {
 public:
  // num_threads >= 1.
  explicit WorkerPool(int num_threads);
  // Runs what was submitted to its end.
  ~WorkerPool();

  // Runs `task` once on a thread of the pool. Tasks of one lane run one after another in the order
  // they came; tasks of different lanes run side by side.
  void Submit(absl::string_view lane, std::function<void()> task);

  // Runs `task` once on a thread of the pool, beside everything else.
  void Submit(std::function<void()> task);

  // Calls task(i) for every i in [0, n) on the calling thread and on whichever threads of the pool
  // are idle; returns when all are done. May be called from a task.
  void ParallelFor(int n, absl::FunctionRef<void(int)> task);

  // Blocks until nothing is queued or running. Not from a task.
  void WaitUntilIdle();

  // Tasks queued and not yet begun.
  int queued() const;

 private:
  // One ParallelFor: whoever takes part draws the next i.
  struct SharedLoop {
    SharedLoop(int n, absl::FunctionRef<void(int)> task) : n(n), task(task) {}
    const int n;
    const absl::FunctionRef<void(int)> task;
    std::atomic<int> next = 0;
    int helpers = 0;  // threads of the pool inside; guarded by the pool's mutex_
  };
  struct Lane {
    std::deque<std::function<void()>> waiting;  // behind the one that is queued or running
  };

  void Work();
  void RunLoop(SharedLoop& loop);
  SharedLoop* FindLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> ready_ ABSL_GUARDED_BY(mutex_);
  // Lanes with a task that is ready or running.
  absl::flat_hash_map<std::string, Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  std::list<SharedLoop*> loops_ ABSL_GUARDED_BY(mutex_);
  int waiting_in_lanes_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_WORKER_POOL_H_

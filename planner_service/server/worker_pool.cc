#include "planner_service/server/worker_pool.h"

#include <utility>

namespace relibra::server {

WorkerPool::WorkerPool(int num_threads) {
  threads_.reserve(num_threads);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Submit(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  ready_.push_back(std::move(task));
}

void WorkerPool::Submit(absl::string_view lane, std::function<void()> task) {
  std::string name(lane);
  // When one task of the lane is done, the next becomes ready.
  auto run = [this, name, task = std::move(task)] {
    task();
    absl::MutexLock lock(&mutex_);
    auto found = lanes_.find(name);
    if (found->second.waiting.empty()) {
      lanes_.erase(found);
      return;
    }
    ready_.push_back(std::move(found->second.waiting.front()));
    found->second.waiting.pop_front();
    --waiting_in_lanes_;
  };
  absl::MutexLock lock(&mutex_);
  const auto [found, is_free] = lanes_.try_emplace(name);
  if (is_free) {
    ready_.push_back(std::move(run));
  } else {
    found->second.waiting.push_back(std::move(run));
    ++waiting_in_lanes_;
  }
}

void WorkerPool::ParallelFor(int n, absl::FunctionRef<void(int)> task) {
  if (n <= 1) {
    if (n == 1) task(0);
    return;
  }
  SharedLoop loop(n, task);
  {
    absl::MutexLock lock(&mutex_);
    loops_.push_back(&loop);
  }
  RunLoop(loop);
  absl::MutexLock lock(&mutex_);
  loops_.remove(&loop);
  // Helpers hold a reference to the loop on this stack.
  mutex_.Await(absl::Condition(
      +[](SharedLoop* shared) { return shared->helpers == 0; }, &loop));
}

void WorkerPool::RunLoop(SharedLoop& loop) {
  for (int i = loop.next++; i < loop.n; i = loop.next++) loop.task(i);
}

void WorkerPool::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ready_.empty() && lanes_.empty() && running_ == 0;
  };
  mutex_.Await(absl::Condition(&idle));
}

int WorkerPool::queued() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(ready_.size()) + waiting_in_lanes_;
}

WorkerPool::SharedLoop* WorkerPool::FindLoop() {
  for (SharedLoop* loop : loops_) {
    if (loop->next < loop->n) return loop;
  }
  return nullptr;
}

bool WorkerPool::HasWork() const {
  if (stopping_ || !ready_.empty()) return true;
  for (const SharedLoop* loop : loops_) {
    if (loop->next < loop->n) return true;
  }
  return false;
}

void WorkerPool::Work() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasWork(); };
    mutex_.Await(absl::Condition(&has_work));
    if (SharedLoop* loop = FindLoop()) {
      ++loop->helpers;
      mutex_.Unlock();
      RunLoop(*loop);
      mutex_.Lock();
      --loop->helpers;
    } else if (!ready_.empty()) {
      std::function<void()> task = std::move(ready_.front());
      ready_.pop_front();
      ++running_;
      mutex_.Unlock();
      task();
      task = nullptr;  // its captures may be large
      mutex_.Lock();
      --running_;
    } else if (stopping_ && lanes_.empty()) {
      return;
    } else if (stopping_) {
      // A lane's task is running elsewhere; its end may make another ready.
      const auto more = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !ready_.empty() || lanes_.empty();
      };
      mutex_.Await(absl::Condition(&more));
    }
  }
}

}  // namespace relibra::server

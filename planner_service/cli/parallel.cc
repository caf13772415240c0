#include "planner_service/cli/parallel.h"

#include <algorithm>

namespace relibra {

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int t = 1; t < threads; ++t) {
    workers_.emplace_back([state = state_.get()] { Work(*state); });
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stopping = true;
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Draw(Loop& loop) {
  for (int i = loop.next++; i < loop.n; i = loop.next++) loop.task(i);
}

void ThreadPool::Work(State& state) {
  const auto something_to_do = [&state]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return state.stopping || (state.loop != nullptr && state.loop->next < state.loop->n);
  };
  state.mutex.Lock();
  while (true) {
    state.mutex.Await(absl::Condition(&something_to_do));
    if (state.stopping) break;
    Loop* loop = state.loop;
    ++loop->inside;
    state.mutex.Unlock();
    Draw(*loop);
    state.mutex.Lock();
    --loop->inside;
  }
  state.mutex.Unlock();
}

void ThreadPool::operator()(int n, absl::FunctionRef<void(int)> task) const {
  absl::MutexLock one_loop(&state_->one_loop);
  Loop loop(n, task);
  {
    absl::MutexLock lock(&state_->mutex);
    state_->loop = &loop;
  }
  Draw(loop);
  const auto all_left = [&loop] { return loop.inside == 0; };
  absl::MutexLock lock(&state_->mutex);
  state_->loop = nullptr;
  state_->mutex.Await(absl::Condition(&all_left));
}

}  // namespace relibra

// A whole EP group in one process: a thread, a transport and a plan source for every rank.
#ifndef RELIBRA_TESTS_WORKER_AGENT_AGENT_GROUP_H_
#define RELIBRA_TESTS_WORKER_AGENT_AGENT_GROUP_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/worker_agent/random_plan.h"
#include "worker_agent/plan_source.h"
#include "worker_agent/selftest/scenario.h"
#include "worker_agent/transport/in_process.h"

namespace relibra::agent {

// Plans that a test put there. Thread-safe.
class FakePlanSource : public PlanSource {
 public:
  // Plans by step. What is not there "does not come": the wait ends at once, as if it had run out.
  void Put(uint32_t step, absl::StatusOr<Plan> plan) {
    absl::MutexLock lock(&mutex_);
    if (plan.ok()) {
      plans_.insert_or_assign(step, std::make_shared<const Plan>(*std::move(plan)));
    } else {
      plans_.insert_or_assign(step, plan.status());
    }
  }

  absl::StatusOr<std::shared_ptr<const Plan>> WaitForPlan(const StepId& id, absl::Time) override {
    absl::MutexLock lock(&mutex_);
    const auto found = plans_.find(id.step);
    if (found == plans_.end()) return absl::DeadlineExceededError("no plan came in time");
    return found->second;
  }

  void Report(const v1::StepReport& report) override {
    absl::MutexLock lock(&mutex_);
    reports_.push_back(report);
  }
  std::vector<v1::StepReport> reports() {
    absl::MutexLock lock(&mutex_);
    return reports_;
  }

 private:
  absl::Mutex mutex_;
  std::map<uint32_t, absl::StatusOr<std::shared_ptr<const Plan>>> plans_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::StepReport> reports_ ABSL_GUARDED_BY(mutex_);
};

// Runs body(rank) on a thread for every rank and joins them.
inline void OnThreads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// loads[m][l][s][e] of the self-test's scenario.
inline std::vector<std::vector<std::vector<std::vector<uint32_t>>>> ScenarioLoads(
    const selftest::Scenario& s, int step) {
  std::vector<std::vector<std::vector<std::vector<uint32_t>>>> loads(
      s.micro_batches, std::vector<std::vector<std::vector<uint32_t>>>(
                           s.layers, std::vector<std::vector<uint32_t>>(
                                         s.ranks(), std::vector<uint32_t>(s.experts, 0))));
  for (int m = 0; m < s.micro_batches; ++m) {
    for (int r = 0; r < s.ranks(); ++r) {
      const std::vector<int32_t> routes = selftest::Routes(s, step, m, r);
      for (size_t i = 0; i < routes.size(); ++i) ++loads[m][i / s.top_k % s.layers][r][routes[i]];
    }
  }
  return loads;
}

}  // namespace relibra::agent

#endif  // RELIBRA_TESTS_WORKER_AGENT_AGENT_GROUP_H_

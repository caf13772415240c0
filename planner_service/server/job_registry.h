// The jobs that the planner knows, each with all that it holds for it.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_JOB_REGISTRY_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_JOB_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/core/plan.h"
#include "planner_service/server/group_agents.h"
#include "planner_service/server/job.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/plan_feed.h"
#include "planner_service/server/state_store.h"
#include "planner_service/server/step_store.h"

namespace relibra::server {

// The homes of one EP group as the planner believes them to be. Any thread may call.
class GroupHomes {
 public:
  explicit GroupHomes(Placement homes)
      : homes_(std::make_shared<const Placement>(std::move(homes))) {}

  std::shared_ptr<const Placement> Get() const;
  // The homes that the plan with this digest leads to.
  void Set(std::shared_ptr<const Placement> homes, std::string digest);
  // Back to the homes before the plan with this digest, unless another plan has set them since.
  // True when they were taken back.
  bool TakeBack(absl::string_view digest, std::shared_ptr<const Placement> homes_before);

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Placement> homes_ ABSL_GUARDED_BY(mutex_);
  std::string digest_ ABSL_GUARDED_BY(mutex_);
};

struct GroupState {
  GroupState(const std::shared_ptr<const Job>& job, int group,
             const std::shared_ptr<MemoryAccount>& account);

  GroupHomes homes;
  PlanFeed feed;
  GroupAgents agents;
};

// Everything of one job. Each part guards itself; any thread may use them. It lives on for whoever
// still holds it after the job is deleted.
class JobState {
 public:
  JobState(std::shared_ptr<const Job> job, std::shared_ptr<MemoryAccount> account,
           MemoryCharge charge, const StepLimits& limits);

  const Job& job() const { return *job_; }
  const std::shared_ptr<const Job>& shared_job() const { return job_; }
  // By which the state store knows the job. Set before threads share it.
  int64_t stored_id() const { return stored_id_; }
  void set_stored_id(int64_t id) { stored_id_ = id; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  StepStore& steps() { return steps_; }
  int num_groups() const { return static_cast<int>(groups_.size()); }
  GroupState& group(int index) { return *groups_[index]; }

  // Ends every watch and every wait of the job's agents with `status` (not OK).
  void Close(const absl::Status& status);

  void AddRecords(uint64_t records, uint64_t bytes);
  uint64_t records() const { return records_; }
  uint64_t record_bytes() const { return record_bytes_; }

  void SetLastError(absl::string_view error);
  std::string last_error() const;

 private:
  const std::shared_ptr<const Job> job_;
  int64_t stored_id_ = 0;
  const std::shared_ptr<MemoryAccount> account_;
  const MemoryCharge charge_;  // for the spec and the agents' places
  StepStore steps_;
  std::vector<std::unique_ptr<GroupState>> groups_;  // as job().groups
  std::atomic<uint64_t> records_ = 0;
  std::atomic<uint64_t> record_bytes_ = 0;

  mutable absl::Mutex mutex_;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
};

struct JobLimits {
  int max_jobs = 0;
  int64_t max_job_bytes = 0;
  StepLimits steps;
};

// Any thread may call.
class JobRegistry {
 public:
  // account: the planner's own. store: must outlive this.
  JobRegistry(std::shared_ptr<MemoryAccount> account, const JobLimits& limits, StateStore& store)
      : account_(std::move(account)), limits_(limits), store_(store) {}

  // Brings back what the store held; called once, before anything else. An error names the job.
  absl::Status Restore();

  struct Registered {
    std::shared_ptr<JobState> job;
    bool existed = false;
  };
  // INVALID_ARGUMENT for a bad field, FAILED_PRECONDITION naming the first difference from a spec
  // that is known under the name, RESOURCE_EXHAUSTED above --max-jobs or a memory quota.
  absl::StatusOr<Registered> Register(const v1::JobSpec& spec);

  // NOT_FOUND naming the job.
  absl::StatusOr<std::shared_ptr<JobState>> Find(absl::string_view name) const;

  // Forgets the job and ends its watches with NOT_FOUND. NOT_FOUND when unknown.
  absl::Status Delete(absl::string_view name);

  // All jobs by name.
  std::vector<std::shared_ptr<JobState>> All() const;

  // Ends every watch and wait of every job with `status` (not OK), of jobs to come as well.
  void CloseAll(const absl::Status& status);

 private:
  // Makes the state of a job, charged for, not yet registered.
  absl::StatusOr<std::shared_ptr<JobState>> MakeState(std::shared_ptr<const Job> job) const;

  const std::shared_ptr<MemoryAccount> account_;
  const JobLimits limits_;
  StateStore& store_;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<JobState>, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_JOB_REGISTRY_H_

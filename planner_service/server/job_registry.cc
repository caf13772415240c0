#include "planner_service/server/job_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/server/restore_job.h"

namespace relibra::server {
namespace {

// What a job costs before it holds any step: its spec, kept twice, and a place for every agent.
int64_t JobBytes(const Job& job) {
  constexpr int64_t kAgentBytes = 512;
  constexpr int64_t kOverhead = 8 << 10;
  const auto num_groups = static_cast<int64_t>(job.groups.size());
  const int64_t homes = int64_t{1} * job.num_layers() * job.num_experts() * 4 * num_groups;
  return kOverhead + 2 * static_cast<int64_t>(job.spec.SpaceUsedLong()) + homes +
         num_groups * job.topology.num_ranks() * kAgentBytes;
}

}  // namespace

std::shared_ptr<const Placement> GroupHomes::Get() const {
  absl::MutexLock lock(&mutex_);
  return homes_;
}

void GroupHomes::Set(std::shared_ptr<const Placement> homes, std::string digest) {
  absl::MutexLock lock(&mutex_);
  homes_ = std::move(homes);
  digest_ = std::move(digest);
}

bool GroupHomes::TakeBack(absl::string_view digest, std::shared_ptr<const Placement> homes_before) {
  absl::MutexLock lock(&mutex_);
  if (digest_.empty() || digest != digest_) return false;
  homes_ = std::move(homes_before);
  digest_.clear();
  return true;
}

GroupState::GroupState(const std::shared_ptr<const Job>& job, int group,
                       const std::shared_ptr<MemoryAccount>& account)
    : homes(LinearPlacement(job->topology, static_cast<int>(job->groups[group].layers.size()),
                            job->num_experts())),
      agents(job, group, account) {}

JobState::JobState(std::shared_ptr<const Job> job, std::shared_ptr<MemoryAccount> account,
                   MemoryCharge charge, const StepLimits& limits)
    : job_(std::move(job)),
      account_(std::move(account)),
      charge_(std::move(charge)),
      steps_(job_, account_, limits) {
  for (size_t g = 0; g < job_->groups.size(); ++g) {
    groups_.push_back(std::make_unique<GroupState>(job_, static_cast<int>(g), account_));
  }
}

void JobState::Close(const absl::Status& status) {
  for (const auto& group : groups_) {
    group->feed.Close(status);
    group->agents.Close(status);
  }
}

void JobState::AddRecords(uint64_t records, uint64_t bytes) {
  records_ += records;
  record_bytes_ += bytes;
}

void JobState::SetLastError(absl::string_view error) {
  absl::MutexLock lock(&mutex_);
  last_error_ = std::string(error);
}

std::string JobState::last_error() const {
  absl::MutexLock lock(&mutex_);
  return last_error_;
}

absl::StatusOr<JobRegistry::Registered> JobRegistry::Register(const v1::JobSpec& spec) {
  absl::StatusOr<std::shared_ptr<const Job>> job = MakeJob(spec);
  if (!job.ok()) return job.status();
  const std::string& name = (*job)->name();
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) {
    const std::string difference = FirstDifference(found->second->job().spec, (*job)->spec);
    if (difference.empty()) return Registered{found->second, true};
    return absl::FailedPreconditionError(absl::StrCat(
        "job \"", name, "\" is registered with another spec; first difference: ", difference));
  }
  if (static_cast<int>(jobs_.size()) >= limits_.max_jobs) {
    return absl::ResourceExhaustedError(absl::StrCat("jobs: ", jobs_.size(),
                                                     " are registered, the quota is ",
                                                     limits_.max_jobs, " (--max-jobs)"));
  }
  absl::StatusOr<std::shared_ptr<JobState>> state = MakeState(*job);
  if (!state.ok()) return state.status();
  absl::StatusOr<int64_t> stored_id = store_.AddJob((*job)->spec);
  if (!stored_id.ok()) return stored_id.status();
  (*state)->set_stored_id(*stored_id);
  jobs_.emplace(name, *state);
  return Registered{*std::move(state), false};
}

absl::StatusOr<std::shared_ptr<JobState>> JobRegistry::MakeState(
    std::shared_ptr<const Job> job) const {
  auto account = MemoryAccount::Create(absl::StrCat("job \"", job->name(), "\""), "--max-job-bytes",
                                       limits_.max_job_bytes, account_);
  absl::StatusOr<MemoryCharge> charge = account->Charge(JobBytes(*job));
  if (!charge.ok()) return charge.status();
  return std::make_shared<JobState>(std::move(job), std::move(account), *std::move(charge),
                                    limits_.steps);
}

absl::Status JobRegistry::Restore() {
  absl::StatusOr<std::vector<StoredJob>> stored = store_.Load();
  if (!stored.ok()) return stored.status();
  absl::MutexLock lock(&mutex_);
  for (StoredJob& job : *stored) {
    const std::string name = job.spec.job();
    absl::StatusOr<std::shared_ptr<const Job>> made = MakeJob(job.spec);
    if (!made.ok()) return made.status();
    absl::StatusOr<std::shared_ptr<JobState>> state = MakeState(*std::move(made));
    absl::Status status = state.status();
    if (status.ok()) {
      (*state)->set_stored_id(job.id);
      status = RestoreJob(std::move(job), **state);
    }
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("restoring job \"", name, "\": ", status.message()));
    }
    jobs_.emplace(name, *std::move(state));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<JobState>> JobRegistry::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return found->second;
  absl::Status well_formed = CheckName("job", name);
  if (!well_formed.ok()) return well_formed;
  return absl::NotFoundError(absl::StrCat("job \"", name, "\" is not registered"));
}

absl::Status JobRegistry::Delete(absl::string_view name) {
  std::shared_ptr<JobState> job;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end()) {
      absl::Status well_formed = CheckName("job", name);
      if (!well_formed.ok()) return well_formed;
      return absl::NotFoundError(absl::StrCat("job \"", name, "\" is not registered"));
    }
    absl::Status stored = store_.DeleteJob(found->second->stored_id());
    if (!stored.ok()) return stored;
    job = std::move(found->second);
    jobs_.erase(found);
  }
  job->Close(absl::NotFoundError(absl::StrCat("job \"", name, "\" was deleted")));
  return absl::OkStatus();
}

std::vector<std::shared_ptr<JobState>> JobRegistry::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<JobState>> all;
  all.reserve(jobs_.size());
  for (const auto& [name, job] : jobs_) all.push_back(job);
  return all;
}

void JobRegistry::CloseAll(const absl::Status& status) {
  std::vector<std::shared_ptr<JobState>> jobs;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = status;
    for (const auto& [name, job] : jobs_) jobs.push_back(job);
  }
  for (const auto& job : jobs) job->Close(status);
}

}  // namespace relibra::server

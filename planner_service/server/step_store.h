// The steps of one job: their records, uploaded loads and plans.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_STEP_STORE_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_STEP_STORE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/core/plan.h"
#include "planner_service/server/job.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/planned_pass.h"
#include "planner_service/server/step_records.h"

namespace relibra::server {

// One step. Any thread may call.
class Step {
 public:
  Step(std::shared_ptr<const Job> job, StepId id, std::shared_ptr<MemoryAccount> account,
       MemoryCharge charge);

  const StepId& id() const { return id_; }
  // What this step holds is charged here.
  MemoryAccount& account() const { return *account_; }
  StepRecords& records() { return records_; }

  // Takes the loads of a pass that is not planned yet, in place of what was uploaded for it before.
  // FAILED_PRECONDITION when it is planned.
  absl::Status PutUpload(const std::string& pass, int group,
                         std::shared_ptr<const ChargedLoads> loads);
  // What was uploaded for a pass that is not planned yet; null when nothing was.
  std::shared_ptr<const ChargedLoads> FindUpload(const std::string& pass, int group) const;

  // Null when the pass is not planned.
  std::shared_ptr<const PlannedPass> FindPass(const std::string& pass, int group) const;
  // Adds a planned pass and drops what was uploaded for it. The first pass of a group sets the
  // step's homes.
  void AddPass(std::shared_ptr<const PlannedPass> pass);
  // Every planned pass, by (pass, group).
  std::vector<std::shared_ptr<const PlannedPass>> passes() const;

  // The homes of the group in this step, as its first planned pass left them; null when none is
  // planned.
  std::shared_ptr<const Placement> Homes(int group) const;
  // Notes that the group did not apply the pass with this digest. When that is the pass that was
  // planned first, the step's homes are again those before it, and it is returned; else null.
  std::shared_ptr<const PlannedPass> TakeBackHomes(int group, absl::string_view digest);

 private:
  using PassAndGroup = std::pair<std::string, int>;

  const StepId id_;
  const std::shared_ptr<MemoryAccount> account_;
  const MemoryCharge charge_;  // for the step itself, on the job's account
  StepRecords records_;

  mutable absl::Mutex mutex_;
  std::map<PassAndGroup, std::shared_ptr<const ChargedLoads>> uploads_ ABSL_GUARDED_BY(mutex_);
  std::map<PassAndGroup, std::shared_ptr<const PlannedPass>> passes_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const PlannedPass>> first_passes_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const Placement>> homes_ ABSL_GUARDED_BY(mutex_);
};

struct StepLimits {
  int64_t max_step_bytes = 0;
  int keep_steps = 1;  // planned steps that are kept
};

// Any thread may call. A step that was forgotten lives on for whoever still holds it.
class StepStore {
 public:
  StepStore(std::shared_ptr<const Job> job, std::shared_ptr<MemoryAccount> job_account,
            const StepLimits& limits)
      : job_(std::move(job)), job_account_(std::move(job_account)), limits_(limits) {}

  // The step, made if it is new. FAILED_PRECONDITION when it was forgotten already.
  absl::StatusOr<std::shared_ptr<Step>> FindOrCreate(const StepId& id);
  // NOT_FOUND when nothing is known of it.
  absl::StatusOr<std::shared_ptr<Step>> Find(const StepId& id) const;

  // Forgets all but the last `keep_steps` planned steps, and with each step those before it. Called
  // after a step is planned. Returns the ids forgotten.
  std::vector<StepId> ForgetOldSteps();

  // Notes that the steps before the first one were forgotten in an earlier life, if as many as are
  // kept are planned. Called once all steps of that life are back.
  void NoteForgotten();

  // All steps, ascending by id.
  std::vector<std::shared_ptr<Step>> All() const;

 private:
  const std::shared_ptr<const Job> job_;
  const std::shared_ptr<MemoryAccount> job_account_;
  const StepLimits limits_;

  mutable absl::Mutex mutex_;
  std::map<StepId, std::shared_ptr<Step>> steps_ ABSL_GUARDED_BY(mutex_);
  // Steps up to this one are forgotten. After a restart it may be an id that no step had.
  std::optional<StepId> last_forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_STEP_STORE_H_

// What the planner must not forget when it crashes: jobs, homes, and the last plans with the loads
// they were made from. Records are not kept: workers send them again.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_STATE_STORE_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_STATE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/server/planned_pass.h"
#include "relibra/v1/job.pb.h"

namespace relibra::server {

// The homes that a group has from now on.
struct StoredHomes {
  int group = 0;  // index into Job.groups
  std::shared_ptr<const Placement> homes;
  std::string digest;  // of the plan that led to them; empty: none
};

// A pass as it was stored. Loads and plan as PlannedPass has them.
struct StoredPass {
  PassKey key;
  Plan plan;
  Loads loads;
  double missing_share = 0;
  RequestDigest request;
  std::shared_ptr<const Placement> homes_before;
  bool taken_back = false;  // its homes were
};

struct StoredJob {
  int64_t id = 0;
  v1::JobSpec spec;
  std::vector<StoredHomes> homes;
  std::vector<StoredPass> passes;  // in the order they were stored
};

// Any thread may call. Every change is on disk, whole, when its call returns OK; an error has
// changed nothing. What cannot be written or read is UNAVAILABLE, naming the file.
class StateStore {
 public:
  virtual ~StateStore() = default;

  // Adds a job and returns the number by which it is stored: another each time a name is used.
  virtual absl::StatusOr<int64_t> AddJob(const v1::JobSpec& spec) = 0;
  // Deletes a job with its homes and passes.
  virtual absl::Status DeleteJob(int64_t job_id) = 0;
  // Adds passes and the homes they lead to, all or nothing. NOT_FOUND when the job was deleted.
  virtual absl::Status AddPasses(int64_t job_id,
                                 absl::Span<const std::shared_ptr<const PlannedPass>> passes,
                                 absl::Span<const StoredHomes> homes) = 0;
  // Notes that a pass was not applied; `homes`, when not null, are the group's again.
  virtual absl::Status TakeBack(int64_t job_id, const PlannedPass& pass,
                                const StoredHomes* homes) = 0;
  virtual absl::Status ForgetSteps(int64_t job_id, absl::Span<const StepId> steps) = 0;

  // Everything stored. Called once, before anything else.
  virtual absl::StatusOr<std::vector<StoredJob>> Load() = 0;
};

// Keeps nothing: a planner that starts afresh every time.
std::unique_ptr<StateStore> NewForgetfulStateStore();

// Keeps state in one SQLite file, made if need be; locks it against a second planner.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_STATE_STORE_H_

// Brings a job back from the state store.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RESTORE_JOB_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RESTORE_JOB_H_

#include "absl/status/status.h"
#include "planner_service/server/job_registry.h"
#include "planner_service/server/state_store.h"

namespace relibra::server {

// Puts stored homes and passes into a job that was made from the stored spec and that no other
// thread knows yet. Watchers will be offered the plans in the order they were first announced.
// RESOURCE_EXHAUSTED when they do not fit into the quotas any more.
absl::Status RestoreJob(StoredJob stored, JobState& job);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RESTORE_JOB_H_

// What the calls of the service work with.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_CONTEXT_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_CONTEXT_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "planner_service/server/job_registry.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/metrics.h"
#include "planner_service/server/open_streams.h"
#include "planner_service/server/state_store.h"
#include "planner_service/server/step_planner.h"
#include "planner_service/server/worker_pool.h"

namespace relibra::server {

// References to parts that outlive every call.
struct ServiceContext {
  JobRegistry& jobs;
  StepPlanner& planner;
  // Runs what takes longer than a moment: counting records, building messages of plans.
  WorkerPool& stream_pool;
  // Plans and packs; one lane a job.
  WorkerPool& planning_pool;
  Metrics& metrics;
  StateStore& store;
  OpenStreams& open_streams;
  std::shared_ptr<MemoryAccount> account;  // the planner's own
  int64_t max_message_bytes = 0;
  absl::Time started;
};

// The two kinds of status share their codes.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_CONTEXT_H_

// Plans steps on the worker pool: from a request to plans that are kept and announced.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_STEP_PLANNER_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_STEP_PLANNER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner_service/server/job_registry.h"
#include "planner_service/server/metrics.h"
#include "planner_service/server/state_store.h"
#include "planner_service/server/worker_pool.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// The passes of one job are planned one after another, so each starts from the homes that the one
// before left. Homes may move only in the pass of a step that is planned first for its group; later
// passes of that step are planned for those same homes.
//
// Any thread may call.
class StepPlanner {
 public:
  using Passes = std::vector<std::shared_ptr<const PlannedPass>>;  // one an EP group
  using DoneCallback = std::function<void(absl::StatusOr<Passes>)>;

  // All must outlive this; all plans must be done before it is destroyed.
  StepPlanner(WorkerPool& pool, StateStore& store, Metrics& metrics)
      : pool_(pool), store_(store), metrics_(metrics) {}

  // Plans what the request asks for (see Planner.PlanStep), keeps and announces it, then calls
  // `done` once, on a thread of the pool or on this one. The request must live until then.
  // Either all groups are planned or none.
  void Plan(std::shared_ptr<JobState> job, const v1::PlanStepRequest& request, DoneCallback done);

 private:
  struct Order;
  struct Work;

  absl::StatusOr<Passes> PlanNow(const Order& order);
  // Looks up what is planned already and the loads that are given outright.
  absl::StatusOr<Work> Begin(const Order& order);
  // Takes no more records; makes the loads of a composition.
  absl::Status SealRecords(const Order& order, Work& work);
  absl::Status PlanAndAnnounce(const Order& order, Work& work);
  // Plans one group; neither kept nor announced yet.
  absl::StatusOr<std::shared_ptr<PlannedPass>> PlanGroup(const Order& order, Step& step, int group,
                                                         std::shared_ptr<const ChargedLoads> loads);
  void Announce(JobState& job, Step& step, const Passes& made);

  WorkerPool& pool_;
  StateStore& store_;
  Metrics& metrics_;
};

// The pass that a request means: its name, or "update" when it has none. INVALID_ARGUMENT when the
// name is malformed.
absl::StatusOr<std::string> PassName(const std::string& pass);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_STEP_PLANNER_H_

// One planned pass of one step of one EP group, and the messages it is told in.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_PLANNED_PASS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_PLANNED_PASS_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/server/job.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/split_cache.h"
#include "relibra/v1/agent.pb.h"
#include "relibra/v1/plan.pb.h"
#include "relibra/v1/routing.pb.h"

namespace relibra::server {

// Ordered as training goes on: by policy version, then by step.
struct StepId {
  uint32_t policy_version = 0;
  uint32_t step = 0;

  friend auto operator<=>(const StepId&, const StepId&) = default;  // NOLINT(modernize-use-nullptr)
};

// "step 17 (policy version 3)"; without the version where it is 0.
std::string ToString(const StepId& id);

struct PassKey {
  StepId step;
  std::string pass;
  int group = 0;  // index into Job.groups

  friend bool operator==(const PassKey&, const PassKey&) = default;
};

// What a pass was asked for, to tell a repeated request from another one.
struct RequestDigest {
  std::string loads;    // of the composition or counts
  std::string options;  // of the plan options

  friend bool operator==(const RequestDigest&, const RequestDigest&) = default;
};

// Loads with what is held against their memory.
struct ChargedLoads {
  Loads loads;
  double missing_share = 0;  // of (token, layer) pairs, those whose route was spread by the mean
  MemoryCharge charge;
};

// Immutable once announced; threads share it by shared_ptr<const PlannedPass>.
struct PlannedPass {
  std::shared_ptr<const Job> job;
  PassKey key;
  Plan plan;
  std::shared_ptr<const ChargedLoads> loads;  // what it was planned from
  RequestDigest request;
  // Homes before the step. The plan that moved them may turn out not to have been applied.
  std::shared_ptr<const Placement> homes_before;
  MemoryCharge charge;  // for the plan
  // Guards itself; the splits follow from plan and loads.
  std::unique_ptr<SplitCache> splits = std::make_unique<SplitCache>();

  const EpGroup& group() const { return job->groups[key.group]; }
};

// The homes that a plan leads to.
std::shared_ptr<const Placement> HomesOf(const Plan& plan);

// Bytes that a plan takes, loads not counted.
int64_t PlanBytes(const Plan& plan);

// The plan without its layers.
v1::Plan PlanHeader(const PlannedPass& pass);

// Which rows of the splits a receiver wants.
struct SplitChoice {
  bool any = false;
  std::optional<int> source_rank;  // only this one's rows; absent: all rows
};

// Layer `layer` (an index into the group's layers), with the splits as columns.
// O(micro-batches x splits of the layer).
v1::LayerPlan LayerMessage(const PlannedPass& pass, int layer, const SplitChoice& splits);

// Message i of the 2 + L that tell a plan: header, each layer, complete.
v1::PlanUpdate UpdateMessage(const PlannedPass& pass, int index, const SplitChoice& splits);
int NumUpdateMessages(const PlannedPass& pass);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_PLANNED_PASS_H_

// Plans of the planning core as messages of the API, and back.
//
//   v1::Plan message = PlanMessage(plan, {.job = "demo", .step = 17}, layer_ids);
//
// Every function here is thread-safe.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_PLAN_MESSAGE_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_PLAN_MESSAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "relibra/v1/plan.pb.h"

namespace relibra {

// Which step of which job a plan is for. The planning core does not know.
struct PlanKey {
  std::string job = {};
  uint32_t step = 0;
  uint32_t policy_version = 0;
  std::string pass = {};
  std::string ep_group = {};
};

// The message without its layers.
v1::Plan PlanHeader(const Plan& plan, const PlanKey& key);

// One layer without splits. layer_id: the model's own number of the layer.
v1::LayerPlan LayerMessage(const LayerPlan& layer, uint32_t layer_id);

// The whole plan without splits (plan_splits.h adds them). layer_ids: [L], the model's own numbers,
// one for each of plan.layers.
v1::Plan PlanMessage(const Plan& plan, const PlanKey& key, absl::Span<const uint32_t> layer_ids);

// The plan of a message that came from outside. Its splits are not looked at. INVALID_ARGUMENT,
// starting with `name` and naming the field and its indices, unless the message is a whole plan
// that keeps what plans keep:
// layers ascend by number and have the same number of experts and of micro-batches; every rank is
// home to E/P experts; a move ends at the expert's home; replicas ascend by (expert, rank), stand
// on another rank than the home, in its node unless they are bridges, in a slot that no other
// replica of the (micro-batch, layer) has; a bridge is the same in every micro-batch.
absl::StatusOr<Plan> PlanFromMessage(const v1::Plan& message, absl::string_view name);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_PLAN_MESSAGE_H_

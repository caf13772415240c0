#include "planner_service/cli/policies.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/baseline/baseline_plan.h"
#include "planner_service/core/plan_check.h"
#include "planner_service/core/split.h"
#include "planner_service/core/split_check.h"

namespace relibra::cli {

absl::StatusOr<Policy> PolicyOf(const std::string& name) {
  for (Policy policy : {Policy::kRelibra, Policy::kEplb, Policy::kNone, Policy::kIdeal}) {
    if (name == NameOf(policy)) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy: expected relibra, eplb, none or ideal, got \"", name, "\""));
}

const char* NameOf(Policy policy) {
  switch (policy) {
    case Policy::kRelibra:
      return "relibra";
    case Policy::kEplb:
      return "eplb";
    case Policy::kNone:
      return "none";
    case Policy::kIdeal:
      return "ideal";
  }
  return "";
}

absl::StatusOr<Plan> PlanBatch(Policy policy, const Batch& batch, const Topology& topology,
                               const PlanOptions& options, bool must_apply,
                               const ThreadPool& threads) {
  const Loads& loads = batch.trace.loads;
  switch (policy) {
    case Policy::kRelibra:
      return PlanStep(loads, topology, batch.current, options, threads);
    case Policy::kNone:
      return PlanNone(loads, topology, batch.current, threads);
    case Policy::kEplb: {
      absl::StatusOr<EplbPlan> eplb = PlanEplb(loads, topology, batch.current, {}, threads);
      if (!eplb.ok()) return eplb.status();
      if (must_apply && !eplb->even_homes.ok()) return eplb->even_homes;
      return std::move(eplb->plan);
    }
    case Policy::kIdeal:
      break;
  }
  return absl::InvalidArgumentError("policy: ideal is a reference point, not a plan");
}

absl::Status VerifyPlan(Policy policy, const Batch& batch, const Plan& plan) {
  const Loads& loads = batch.trace.loads;
  absl::Status status = CheckPlan(loads, plan.topology, batch.current, plan,
                                  /*may_be_worse=*/policy != Policy::kRelibra);
  if (!status.ok()) return status;
  std::vector<Split> splits;
  return CheckAllSplits(loads, plan, [&](int l, int m) {
    const LayerPlan& layer = plan.layers[l];
    SplitTokens(plan.topology, loads.At(m, l), layer.home_rank, layer.replicas[m], splits);
    return absl::MakeConstSpan(splits);
  });
}

}  // namespace relibra::cli

// Plans of one batch by the name of a policy.
#ifndef RELIBRA_PLANNER_SERVICE_CLI_POLICIES_H_
#define RELIBRA_PLANNER_SERVICE_CLI_POLICIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "planner_service/cli/parallel.h"
#include "planner_service/cli/planning_flags.h"
#include "planner_service/core/plan.h"

namespace relibra::cli {

enum class Policy { kRelibra, kEplb, kNone, kIdeal };

// INVALID_ARGUMENT naming the names there are.
absl::StatusOr<Policy> PolicyOf(const std::string& name);
const char* NameOf(Policy policy);

// The plan of the batch by `relibra`, `eplb` or `none` (`ideal` has none: INVALID_ARGUMENT).
// must_apply: the plan is to be applied, so that EPLB without even homes is FAILED_PRECONDITION.
absl::StatusOr<Plan> PlanBatch(Policy policy, const Batch& batch, const Topology& topology,
                               const PlanOptions& options, bool must_apply,
                               const ThreadPool& threads);

// Checks plan and splits with the independent checker; INTERNAL when a rule is broken.
absl::Status VerifyPlan(Policy policy, const Batch& batch, const Plan& plan);

}  // namespace relibra::cli

#endif  // RELIBRA_PLANNER_SERVICE_CLI_POLICIES_H_

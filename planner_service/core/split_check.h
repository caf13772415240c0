// An independent check of splits: it shares no code with SplitTokens, only the value types.
//
// What holds of the splits of every (micro-batch, layer): those of a replicated expert place
// exactly the load of every source rank and give every instance exactly its quota (a replica its
// tokens, the home the rest); rows ascend by (expert, source rank, rank) and none is zero; an
// expert without replicas has none.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_SPLIT_CHECK_H_
#define RELIBRA_PLANNER_SERVICE_CORE_SPLIT_CHECK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

// OK when `splits` are right for one (micro-batch, layer): loads [S, E], home_rank [E], replicas
// ascending by (expert, rank) that CheckPlan accepts; else INTERNAL naming the expert, source rank
// and rank of the first violation.
absl::Status CheckSplits(const Topology& topology, absl::Span<const uint32_t> loads,
                         absl::Span<const int32_t> home_rank, absl::Span<const Replica> replicas,
                         absl::Span<const Split> splits);

// CheckSplits for the whole plan: splits_of(layer, micro_batch) hands out the splits, valid until
// it is called again.
absl::Status CheckAllSplits(const Loads& loads, const Plan& plan,
                            absl::FunctionRef<absl::Span<const Split>(int, int)> splits_of);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_SPLIT_CHECK_H_

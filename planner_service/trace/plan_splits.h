// The splits of a plan, which the planning core computes from plan and loads, as messages.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_PLAN_SPLITS_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_PLAN_SPLITS_H_

#include "planner_service/core/loads.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"
#include "relibra/v1/plan.pb.h"

namespace relibra {

// Adds the rows of the splits to every micro-batch of `message`, which is LayerMessage of `layer`.
// loads: those that the plan was made for; layer_index: the layer's position in them. Thread-safe.
void AddSplits(const Topology& topology, const LayerPlan& layer, const Loads& loads,
               int layer_index, v1::LayerPlan& message);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_PLAN_SPLITS_H_

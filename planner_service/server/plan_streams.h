// The server-streaming calls: GetPlan, GetLoads and WatchPlans.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_PLAN_STREAMS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_PLAN_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include "planner_service/server/service_context.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// Each serves one call and deletes itself after it.
grpc::ServerWriteReactor<v1::PlanUpdate>* NewGetPlanStream(ServiceContext& context,
                                                           const v1::GetPlanRequest& request);
grpc::ServerWriteReactor<v1::LoadCounts>* NewGetLoadsStream(ServiceContext& context,
                                                            const v1::GetLoadsRequest& request);
grpc::ServerWriteReactor<v1::PlanUpdate>* NewWatchStream(ServiceContext& context,
                                                         const v1::WatchPlansRequest& request);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_PLAN_STREAMS_H_

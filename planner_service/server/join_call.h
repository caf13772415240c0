// The JoinGroup call: it waits for the other ranks without holding a thread.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_JOIN_CALL_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_JOIN_CALL_H_

#include <grpcpp/support/server_callback.h>

#include "planner_service/server/service_context.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// Serves one call and deletes itself after it.
grpc::ServerUnaryReactor* NewJoinCall(ServiceContext& context, grpc::CallbackServerContext* call,
                                      const v1::JoinGroupRequest& request,
                                      v1::JoinGroupResponse* response);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_JOIN_CALL_H_

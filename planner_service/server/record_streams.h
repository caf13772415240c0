// The client-streaming calls: StreamRouting and UploadLoads.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include "planner_service/server/service_context.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// Each serves one call and deletes itself after it.
grpc::ServerReadReactor<v1::StreamRoutingRequest>* NewRoutingStream(
    ServiceContext& context, v1::StreamRoutingResponse* response);
grpc::ServerReadReactor<v1::UploadLoadsRequest>* NewUploadStream(ServiceContext& context,
                                                                 v1::UploadLoadsResponse* response);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_

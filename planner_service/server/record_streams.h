// The client-streaming calls: StreamRouting and UploadLoads.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "planner_service/server/service_context.h"

namespace relibra::server {

// Each serves one call and deletes itself after it.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewRoutingStream(ServiceContext& context,
                                                            grpc::ByteBuffer* response);
grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadStream(ServiceContext& context,
                                                           grpc::ByteBuffer* response);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RECORD_STREAMS_H_

// The gRPC service: every call checks its message, asks the part that knows, and answers.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_H_

#include "planner_service/server/service_context.h"
#include "relibra/v1/planner.grpc.pb.h"

namespace relibra::server {

// Calls whose messages gRPC parses.
template <typename Base>
using SmallMessages = v1::Planner::WithCallbackMethod_RegisterJob<
    v1::Planner::WithCallbackMethod_DeleteJob<v1::Planner::WithCallbackMethod_GetStatus<
        v1::Planner::WithCallbackMethod_GetLoads<v1::Planner::WithCallbackMethod_PackSequences<
            v1::Planner::WithCallbackMethod_GetPlan<v1::Planner::WithCallbackMethod_JoinGroup<
                v1::Planner::WithCallbackMethod_WatchPlans<
                    v1::Planner::WithCallbackMethod_ReportStep<Base>>>>>>>>>;

// Calls whose messages come as bytes; see raw_message.h.
template <typename Base>
using LargeMessages =
    v1::Planner::WithRawCallbackMethod_StreamRouting<v1::Planner::WithRawCallbackMethod_UploadLoads<
        v1::Planner::WithRawCallbackMethod_PlanStep<Base>>>;

// What each call means is written in proto/relibra/v1/planner.proto. No call blocks a thread: what
// takes long runs on the pools of the context, what waits leaves a callback.
class PlannerService final : public LargeMessages<SmallMessages<v1::Planner::Service>> {
 public:
  // The parts in `context` must outlive the server that this is registered with.
  explicit PlannerService(ServiceContext context) : context_(std::move(context)) {}

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* call,
                                        const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* call,
                                      const v1::DeleteJobRequest* request,
                                      v1::DeleteJobResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* call,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* StreamRouting(grpc::CallbackServerContext* call,
                                                           grpc::ByteBuffer* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* UploadLoads(grpc::CallbackServerContext* call,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<v1::LoadCounts>* GetLoads(grpc::CallbackServerContext* call,
                                                     const v1::GetLoadsRequest* request) override;
  grpc::ServerUnaryReactor* PlanStep(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PackSequences(grpc::CallbackServerContext* call,
                                          const v1::PackSequencesRequest* request,
                                          v1::PackSequencesResponse* response) override;
  grpc::ServerWriteReactor<v1::PlanUpdate>* GetPlan(grpc::CallbackServerContext* call,
                                                    const v1::GetPlanRequest* request) override;
  grpc::ServerUnaryReactor* JoinGroup(grpc::CallbackServerContext* call,
                                      const v1::JoinGroupRequest* request,
                                      v1::JoinGroupResponse* response) override;
  grpc::ServerWriteReactor<v1::PlanUpdate>* WatchPlans(
      grpc::CallbackServerContext* call, const v1::WatchPlansRequest* request) override;
  grpc::ServerUnaryReactor* ReportStep(grpc::CallbackServerContext* call,
                                       const v1::ReportStepRequest* request,
                                       v1::ReportStepResponse* response) override;

 private:
  // Ends a unary call.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* call, const char* method,
                                   const absl::Status& status);
  absl::Status TakeReport(const v1::StepReport& report);

  ServiceContext context_;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_SERVICE_H_

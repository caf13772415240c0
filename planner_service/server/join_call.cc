#include "planner_service/server/join_call.h"

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace relibra::server {
namespace {

using Clock = std::chrono::system_clock;

class JoinCall : public grpc::ServerUnaryReactor {
 public:
  JoinCall(ServiceContext& context, v1::JoinGroupResponse* response)
      : context_(context), response_(response) {}

  void Start(const v1::AgentInfo& agent, Clock::time_point deadline) {
    absl::StatusOr<std::shared_ptr<JobState>> job = context_.jobs.Find(agent.job());
    if (!job.ok()) {
      Answer(job.status());
      return;
    }
    absl::StatusOr<int> group = (*job)->job().GroupIndex(agent.ep_group());
    if (!group.ok()) {
      Answer(group.status());
      return;
    }
    spdlog::info("job={} ep_group={} rank={} event=joining incarnation={}", agent.job(),
                 (*job)->job().groups[*group].name, agent.rank(), agent.incarnation());
    job_ = *std::move(job);
    GroupAgents& agents = job_->group(*group).agents;
    agents_ = &agents;
    waiter_ = agents.NewWaiter();
    // Ahead of the client's own deadline, so that it is told who is missing.
    const auto left = deadline - Clock::now();
    if (deadline != Clock::time_point::max() && left < std::chrono::hours(24 * 365)) {
      const auto ahead = std::min<Clock::duration>(std::chrono::milliseconds(200), left / 10);
      alarm_.Set(deadline - ahead, [job = job_, &agents, waiter = waiter_](bool ok) {
        if (ok) agents.Expire(waiter);
      });
    }
    agents.Join(waiter_, agent, [this](absl::StatusOr<GroupAgents::Members> members) {
      if (!members.ok()) {
        Answer(members.status());
        return;
      }
      for (v1::AgentInfo& member : *members) *response_->add_members() = std::move(member);
      Answer(absl::OkStatus());
    });
  }

  void OnCancel() override {
    if (agents_ != nullptr) agents_->Leave(waiter_, absl::CancelledError("the agent is gone"));
  }

  void OnDone() override { delete this; }

 private:
  // The object may be gone when this returns.
  void Answer(const absl::Status& status) {
    context_.metrics.RequestDone("JoinGroup", static_cast<int>(status.code()));
    Finish(ToGrpc(status));
  }

  ServiceContext& context_;
  v1::JoinGroupResponse* const response_;
  std::shared_ptr<JobState> job_;
  GroupAgents* agents_ = nullptr;  // in job_
  uint64_t waiter_ = 0;
  grpc::Alarm alarm_;
};

}  // namespace

grpc::ServerUnaryReactor* NewJoinCall(ServiceContext& context, grpc::CallbackServerContext* call,
                                      const v1::JoinGroupRequest& request,
                                      v1::JoinGroupResponse* response) {
  auto* join = new JoinCall(context, response);
  join->Start(request.agent(), call->deadline());
  return join;
}

}  // namespace relibra::server

// A planner that lets two ranks find each other and never has a plan. Writes its port to standard
// error and serves until it is killed.
#include <grpcpp/grpcpp.h>

#include <array>
#include <cstdio>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "relibra/v1/planner.grpc.pb.h"

namespace {

class TwoRankPlanner : public relibra::v1::Planner::Service {
 public:
  // Answers once both ranks have called.
  grpc::Status JoinGroup(grpc::ServerContext*, const relibra::v1::JoinGroupRequest* request,
                         relibra::v1::JoinGroupResponse* response) override {
    absl::MutexLock lock(&mutex_);
    members_[request->agent().rank() % 2] = request->agent();
    ++joined_;
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return joined_ >= 2; };
    mutex_.Await(absl::Condition(&all));
    for (const auto& member : members_) *response->add_members() = member;
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  std::array<relibra::v1::AgentInfo, 2> members_ ABSL_GUARDED_BY(mutex_);
  int joined_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

int main() {
  TwoRankPlanner planner;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&planner);
  const auto server = builder.BuildAndStart();
  std::fprintf(stderr, "%d\n", port);
  server->Wait();
}

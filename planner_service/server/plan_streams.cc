#include "planner_service/server/plan_streams.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner_service/server/server_stream.h"

namespace relibra::server {
namespace {

// GetPlan and GetLoads name a pass in the same fields.
template <typename Request>
absl::StatusOr<std::shared_ptr<const PlannedPass>> FindPass(JobRegistry& jobs,
                                                            const Request& request) {
  absl::StatusOr<std::shared_ptr<JobState>> job = jobs.Find(request.key().job());
  if (!job.ok()) return job.status();
  absl::StatusOr<int> group = (*job)->job().GroupIndex(request.ep_group());
  if (!group.ok()) return group.status();
  absl::StatusOr<std::string> pass = PassName(request.pass());
  if (!pass.ok()) return pass.status();
  const StepId id = {request.key().policy_version(), request.key().step()};
  absl::StatusOr<std::shared_ptr<Step>> step = (*job)->steps().Find(id);
  if (!step.ok()) return step.status();
  std::shared_ptr<const PlannedPass> found = (*step)->FindPass(*pass, *group);
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("pass \"", *pass, "\" of ", ToString(id),
                                            ", EP group \"", (*job)->job().groups[*group].name,
                                            "\", is not planned"));
  }
  return found;
}

absl::Status CheckRank(absl::string_view field, uint32_t rank, const Job& job) {
  if (rank < static_cast<uint32_t>(job.topology.num_ranks())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected less than ", job.topology.num_ranks(), ", got ", rank));
}

class GetPlanStream : public ServerStream<v1::PlanUpdate> {
 public:
  GetPlanStream(ServiceContext& context, const v1::GetPlanRequest& request)
      : ServerStream(context, "GetPlan") {
    absl::StatusOr<std::shared_ptr<const PlannedPass>> pass = FindPass(context.jobs, request);
    if (!pass.ok()) {
      Finish(pass.status());
      return;
    }
    pass_ = *std::move(pass);
    if (request.split_choice_case() == v1::GetPlanRequest::kSourceRank) {
      absl::Status status = CheckRank("source_rank", request.source_rank(), *pass_->job);
      if (!status.ok()) {
        Finish(status);
        return;
      }
      splits_.source_rank = static_cast<int>(request.source_rank());
    }
    splits_.any = request.all_splits() || splits_.source_rank.has_value();
    Resume();
  }

 protected:
  Next MakeNext(v1::PlanUpdate& message, absl::Status&) override {
    if (next_ == NumUpdateMessages(*pass_)) return Next::kFinish;
    message = UpdateMessage(*pass_, next_++, splits_);
    return Next::kWrite;
  }

 private:
  std::shared_ptr<const PlannedPass> pass_;
  SplitChoice splits_;
  int next_ = 0;
};

class GetLoadsStream : public ServerStream<v1::LoadCounts> {
 public:
  GetLoadsStream(ServiceContext& context, const v1::GetLoadsRequest& request)
      : ServerStream(context, "GetLoads") {
    absl::StatusOr<std::shared_ptr<const PlannedPass>> pass = FindPass(context.jobs, request);
    if (!pass.ok()) {
      Finish(pass.status());
      return;
    }
    pass_ = *std::move(pass);
    Resume();
  }

 protected:
  Next MakeNext(v1::LoadCounts& message, absl::Status&) override {
    const Loads& loads = pass_->loads->loads;
    const LoadShape& shape = loads.shape();
    const int num_entries = shape.micro_batches * shape.layers;
    if (next_ == num_entries) return Next::kFinish;
    message.set_num_micro_batches(shape.micro_batches);
    message.set_num_layers(shape.layers);
    message.set_num_source_ranks(shape.sources);
    message.set_num_experts(shape.experts);
    message.set_first_entry(next_);
    // A count takes at most 5 bytes on the wire.
    constexpr int kMessageBytes = 1 << 20;
    const int64_t entry_bytes = int64_t{5} * shape.sources * shape.experts;
    const auto at_once = static_cast<int>(std::max<int64_t>(1, kMessageBytes / entry_bytes));
    const int end = std::min(num_entries, next_ + at_once);
    for (; next_ < end; ++next_) {
      const absl::Span<const uint32_t> matrix =
          loads.At(next_ / shape.layers, next_ % shape.layers);
      message.add_entries()->mutable_counts()->Add(matrix.begin(), matrix.end());
    }
    return Next::kWrite;
  }

 private:
  std::shared_ptr<const PlannedPass> pass_;
  int next_ = 0;
};

class WatchStream : public ServerStream<v1::PlanUpdate> {
 public:
  WatchStream(ServiceContext& context, const v1::WatchPlansRequest& request)
      : ServerStream(context, "WatchPlans"), from_step_(request.from_step()) {
    absl::StatusOr<std::shared_ptr<JobState>> job = context.jobs.Find(request.job());
    if (!job.ok()) {
      Finish(job.status());
      return;
    }
    absl::StatusOr<int> group = (*job)->job().GroupIndex(request.ep_group());
    absl::Status status =
        group.ok() ? CheckRank("rank", request.rank(), (*job)->job()) : group.status();
    if (!status.ok()) {
      Finish(status);
      return;
    }
    job_ = *std::move(job);
    group_ = &job_->group(*group);
    splits_ = {.any = true, .source_rank = static_cast<int>(request.rank())};
    group_->agents.AddWatch(request.rank());
    watcher_ = group_->feed.AddWatcher();
    // Tells the agent that it is heard before there is any plan.
    StartSendInitialMetadata();
    spdlog::info("job={} ep_group={} rank={} event=watching from_step={}", job_->job().name(),
                 job_->job().groups[*group].name, request.rank(), from_step_);
    Resume();
  }

  void OnCancel() override {
    // While it waits for a plan nobody else would end it.
    if (group_ != nullptr && group_->feed.RemoveWatcher(watcher_)) {
      Finish(absl::CancelledError("the client is gone"));
    }
  }

  void OnDone() override {
    if (group_ != nullptr) {
      group_->feed.RemoveWatcher(watcher_);
      group_->agents.RemoveWatch(*splits_.source_rank);
    }
    ServerStream::OnDone();
  }

 protected:
  Next MakeNext(v1::PlanUpdate& message, absl::Status& status) override {
    if (pass_ == nullptr) {
      PlanFeed::Next next =
          group_->feed.After(position_, from_step_, watcher_, [this] { Resume(); });
      if (!next.closed.ok()) {
        status = next.closed;
        return Next::kFinish;
      }
      if (next.pass == nullptr) return Next::kWait;
      pass_ = std::move(next.pass);
      position_ = next.position;
      next_ = 0;
    }
    message = UpdateMessage(*pass_, next_++, splits_);
    if (next_ == NumUpdateMessages(*pass_)) pass_ = nullptr;
    return Next::kWrite;
  }

 private:
  const uint32_t from_step_;
  std::shared_ptr<JobState> job_;
  GroupState* group_ = nullptr;  // in job_; null when the call was refused
  SplitChoice splits_;
  uint64_t watcher_ = 0;
  uint64_t position_ = 0;                    // of the plan that was begun last
  std::shared_ptr<const PlannedPass> pass_;  // being sent; null between plans
  int next_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::PlanUpdate>* NewGetPlanStream(ServiceContext& context,
                                                           const v1::GetPlanRequest& request) {
  return new GetPlanStream(context, request);
}

grpc::ServerWriteReactor<v1::LoadCounts>* NewGetLoadsStream(ServiceContext& context,
                                                            const v1::GetLoadsRequest& request) {
  return new GetLoadsStream(context, request);
}

grpc::ServerWriteReactor<v1::PlanUpdate>* NewWatchStream(ServiceContext& context,
                                                         const v1::WatchPlansRequest& request) {
  return new WatchStream(context, request);
}

}  // namespace relibra::server

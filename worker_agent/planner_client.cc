#include "worker_agent/planner_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker_agent/backoff.h"

namespace relibra::agent {
namespace {

// Reports that wait for a planner that is away. Older ones are dropped.
constexpr size_t kMaxReports = 64;
// Plans of steps that lie this far behind the newest one asked for are forgotten.
constexpr uint32_t kKeepSteps = 2;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& planner) {
  grpc::ChannelArguments arguments;
  // Our own back-off decides when to try again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(planner, grpc::InsecureChannelCredentials(), arguments);
}

std::chrono::system_clock::time_point ToGrpc(absl::Time time) {
  return time == absl::InfiniteFuture() ? std::chrono::system_clock::time_point::max()
                                        : absl::ToChronoTime(time);
}

}  // namespace

PlannerClient::PlannerClient(PlannerClientOptions options)
    : options_(std::move(options)), stub_(v1::Planner::NewStub(MakeChannel(options_.planner))) {
  reporter_ = std::thread([this] { ReportLoop(); });
}

PlannerClient::~PlannerClient() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    if (watch_call_ != nullptr) watch_call_->TryCancel();
    if (report_call_ != nullptr) report_call_->TryCancel();
  }
  if (watcher_.joinable()) watcher_.join();
  reporter_.join();
}

absl::StatusOr<std::vector<v1::AgentInfo>> PlannerClient::JoinGroup(const v1::AgentInfo& self,
                                                                    absl::Time deadline) {
  Backoff backoff(options_.first_backoff, options_.longest_backoff, options_.rank);
  v1::JoinGroupRequest request;
  *request.mutable_agent() = self;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(deadline));
    v1::JoinGroupResponse response;
    const grpc::Status status = stub_->JoinGroup(&context, request, &response);
    if (status.ok()) {
      if (response.members_size() != options_.shape.ranks()) {
        return absl::InternalError(absl::StrCat("planner names ", response.members_size(),
                                                " ranks of the group, expected ",
                                                options_.shape.ranks()));
      }
      return std::vector<v1::AgentInfo>(response.members().begin(), response.members().end());
    }
    const bool again = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::NOT_FOUND ||
                       status.error_code() == grpc::StatusCode::ABORTED;
    const absl::Duration wait = backoff.Next();
    if (!again || absl::Now() + wait >= deadline || !SleepFor(wait)) {
      return absl::Status(
          static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("joining group '", options_.ep_group, "' of job '", options_.job, "' at ",
                       options_.planner, ": ", status.error_message()));
    }
  }
}

void PlannerClient::Watch(uint32_t from_step) {
  {
    absl::MutexLock lock(&mutex_);
    from_step_ = from_step;
  }
  watcher_ = std::thread([this] { WatchLoop(); });
}

void PlannerClient::WatchLoop() {
  Backoff backoff(options_.first_backoff, options_.longest_backoff, 1000003 + options_.rank);
  while (true) {
    grpc::ClientContext context;
    v1::WatchPlansRequest request;
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
      watch_call_ = &context;
      request.set_from_step(from_step_);
    }
    request.set_job(options_.job);
    request.set_ep_group(options_.ep_group);
    request.set_rank(options_.rank);
    const auto stream = stub_->WatchPlans(&context, request);
    const absl::Time opened = absl::Now();
    ReadStream(*stream);
    const grpc::Status status = stream->Finish();
    {
      absl::MutexLock lock(&mutex_);
      watch_call_ = nullptr;
      if (stop_) return;
      stream_error_ = status.ok() ? "the planner ended the stream" : status.error_message();
    }
    // A stream that lived was a success: start again with short waits.
    if (absl::Now() - opened > options_.longest_backoff) backoff.Reset();
    if (!SleepFor(backoff.Next())) return;
  }
}

void PlannerClient::ReadStream(grpc::ClientReaderInterface<v1::PlanUpdate>& stream) {
  // A plan counts only when its end has come.
  v1::Plan plan;
  bool open = false;
  v1::PlanUpdate update;
  while (stream.Read(&update)) {
    switch (update.update_case()) {
      case v1::PlanUpdate::kHeader:
        plan = std::move(*update.mutable_header());
        plan.clear_layers();
        open = true;
        break;
      case v1::PlanUpdate::kLayer:
        if (open) *plan.add_layers() = std::move(*update.mutable_layer());
        break;
      case v1::PlanUpdate::kComplete:
        if (open && update.complete().digest() == plan.digest() &&
            update.complete().num_layers() == static_cast<uint32_t>(plan.layers_size())) {
          Keep(plan);
        }
        open = false;
        break;
      case v1::PlanUpdate::UPDATE_NOT_SET:
        break;
    }
  }
}

void PlannerClient::Keep(const v1::Plan& message) {
  absl::StatusOr<Plan> read = ReadPlan(message, options_.shape, options_.rank);
  MaybePlan plan = absl::UnknownError("");
  if (read.ok()) {
    plan = std::make_shared<const Plan>(*std::move(read));
  } else {
    plan = read.status();
  }
  const Key key{message.step(), message.policy_version(),
                message.pass().empty() ? "update" : message.pass()};
  absl::MutexLock lock(&mutex_);
  if (message.step() + kKeepSteps < from_step_) return;
  plans_.insert_or_assign(key, std::move(plan));
}

absl::StatusOr<std::shared_ptr<const Plan>> PlannerClient::WaitForPlan(const StepId& id,
                                                                       absl::Time deadline) {
  const Key key{id.step, id.policy_version, id.pass};
  absl::MutexLock lock(&mutex_);
  from_step_ = std::max(from_step_, id.step);
  std::erase_if(plans_, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::get<0>(entry.first) + kKeepSteps < from_step_;
  });
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return plans_.contains(key); };
  if (mutex_.AwaitWithDeadline(absl::Condition(&there), deadline)) return plans_.at(key);
  return absl::DeadlineExceededError(absl::StrCat(
      "no plan for step ", id.step, ", pass '", id.pass, "' came in time",
      stream_error_.empty() ? "" : absl::StrCat("; the stream of plans broke: ", stream_error_)));
}

void PlannerClient::Report(const v1::StepReport& report) {
  absl::MutexLock lock(&mutex_);
  if (reports_.size() == kMaxReports) reports_.pop_front();
  reports_.push_back(report);
  reports_.back().set_job(options_.job);
  reports_.back().set_ep_group(options_.ep_group);
}

void PlannerClient::ReportLoop() {
  while (true) {
    grpc::ClientContext context;
    v1::ReportStepRequest request;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || !reports_.empty();
      };
      mutex_.Await(absl::Condition(&wanted));
      // What is left when the client goes is delivered if the planner answers at once.
      if (reports_.empty()) return;
      *request.mutable_report() = std::move(reports_.front());
      reports_.pop_front();
      context.set_deadline(
          ToGrpc(absl::Now() + (stop_ ? absl::Milliseconds(500) : options_.report_timeout)));
      report_call_ = stop_ ? nullptr : &context;
    }
    v1::ReportStepResponse response;
    const grpc::Status status = stub_->ReportStep(&context, request, &response);
    absl::MutexLock lock(&mutex_);
    report_call_ = nullptr;
    if (!status.ok() && stop_) return;
  }
}

bool PlannerClient::SleepFor(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stop_), duration);
}

}  // namespace relibra::agent

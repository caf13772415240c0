#include "planner_service/server/group_agents.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace relibra::server {
namespace {

constexpr size_t kMaxAddressBytes = 64 << 10;
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kRanksShown = 8;

absl::Status CheckAgent(const v1::AgentInfo& agent, int num_ranks) {
  if (agent.rank() >= static_cast<uint32_t>(num_ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent.rank: expected less than ", num_ranks, ", got ", agent.rank()));
  }
  if (agent.transport_address().size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError(absl::StrCat("agent.transport_address: expected at most ",
                                                   kMaxAddressBytes, " bytes, got ",
                                                   agent.transport_address().size()));
  }
  for (const auto& [field, value] :
       {std::pair<const char*, const std::string&>{"host", agent.host()},
        {"transport", agent.transport()}}) {
    if (value.size() > kMaxHostBytes) {
      return absl::InvalidArgumentError(absl::StrCat("agent.", field, ": expected at most ",
                                                     kMaxHostBytes, " bytes, got ", value.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

GroupAgents::GroupAgents(std::shared_ptr<const Job> job, int group,
                         std::shared_ptr<MemoryAccount> account)
    : job_(std::move(job)),
      group_(group),
      account_(std::move(account)),
      agents_(job_->topology.num_ranks()) {}

absl::Status GroupAgents::Enter(const v1::AgentInfo& agent, std::vector<JoinCallback>& superseded) {
  absl::Status status = CheckAgent(agent, static_cast<int>(agents_.size()));
  if (!status.ok()) return status;
  Agent& known = agents_[agent.rank()];
  if (known.known && agent.incarnation() < known.info.incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("agent.incarnation: rank ", agent.rank(),
                                                      " is known with ", known.info.incarnation(),
                                                      ", got the earlier ", agent.incarnation()));
  }
  const bool is_newer = !known.known || agent.incarnation() > known.info.incarnation();
  if (!is_newer) {
    if (agent.transport_address() != known.info.transport_address()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "agent.transport_address: rank ", agent.rank(), ", incarnation ", agent.incarnation(),
          " joined with another address; a new address needs a new incarnation"));
    }
    known.in_round = true;
    return absl::OkStatus();
  }
  absl::StatusOr<MemoryCharge> charge =
      account_->Charge(static_cast<int64_t>(sizeof(Agent) + agent.ByteSizeLong()));
  if (!charge.ok()) return charge.status();
  if (Complete()) {
    for (Agent& member : agents_) member.in_round = false;
  }
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->second.done != nullptr && it->second.rank == agent.rank()) {
      superseded.push_back(std::move(it->second.done));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  known.info = agent;
  known.charge = *std::move(charge);
  known.known = true;
  known.in_round = true;
  return absl::OkStatus();
}

bool GroupAgents::Complete() const {
  for (const Agent& agent : agents_) {
    if (!agent.in_round) return false;
  }
  return true;
}

GroupAgents::Members GroupAgents::AllMembers() const {
  Members members;
  members.reserve(agents_.size());
  for (const Agent& agent : agents_) members.push_back(agent.info);
  return members;
}

uint64_t GroupAgents::NewWaiter() {
  absl::MutexLock lock(&mutex_);
  waiters_.emplace(++last_waiter_, Waiter{});
  return last_waiter_;
}

void GroupAgents::Join(uint64_t waiter, const v1::AgentInfo& agent, JoinCallback done) {
  std::vector<JoinCallback> superseded;
  std::vector<JoinCallback> complete;
  JoinCallback refused;
  absl::Status status;
  Members members;
  {
    absl::MutexLock lock(&mutex_);
    status = closed_;
    if (status.ok() && waiters_.erase(waiter) == 0)
      status = absl::CancelledError("no longer waited for");
    if (status.ok()) status = Enter(agent, superseded);
    if (status.ok() && Complete()) {
      members = AllMembers();
      for (auto it = waiters_.begin(); it != waiters_.end();) {
        if (it->second.done == nullptr) {
          ++it;
          continue;
        }
        complete.push_back(std::move(it->second.done));
        it = waiters_.erase(it);
      }
      complete.push_back(std::move(done));
    } else if (status.ok()) {
      waiters_.emplace(waiter, Waiter{agent.rank(), std::move(done)});
    } else {
      refused = std::move(done);
    }
  }
  if (refused != nullptr) refused(status);
  for (const JoinCallback& callback : superseded) {
    callback(absl::AbortedError(
        absl::StrCat("rank ", agent.rank(), " joined as incarnation ", agent.incarnation())));
  }
  for (const JoinCallback& callback : complete) callback(members);
}

void GroupAgents::Leave(uint64_t waiter, const absl::Status& status) {
  JoinCallback done;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = waiters_.find(waiter);
    if (found == waiters_.end()) return;
    done = std::move(found->second.done);
    waiters_.erase(found);
  }
  if (done != nullptr) done(status);
}

void GroupAgents::Expire(uint64_t waiter) {
  std::vector<size_t> absent;
  size_t num_absent = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t rank = 0; rank < agents_.size(); ++rank) {
      if (agents_[rank].in_round) continue;
      if (num_absent++ < kRanksShown) absent.push_back(rank);
    }
  }
  Leave(waiter, absl::DeadlineExceededError(absl::StrCat(
                    num_absent, " of ", job_->topology.num_ranks(), " ranks of EP group \"",
                    job_->groups[group_].name, "\" have not joined: ", absl::StrJoin(absent, ", "),
                    num_absent > kRanksShown ? ", ..." : "")));
}

void GroupAgents::Close(const absl::Status& status) {
  std::map<uint64_t, Waiter> waiters;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = status;
    waiters.swap(waiters_);
  }
  for (auto& [name, waiter] : waiters) {
    if (waiter.done != nullptr) waiter.done(status);
  }
}

void GroupAgents::AddWatch(uint32_t rank) {
  absl::MutexLock lock(&mutex_);
  ++agents_[rank].watches;
}

void GroupAgents::RemoveWatch(uint32_t rank) {
  absl::MutexLock lock(&mutex_);
  --agents_[rank].watches;
}

int GroupAgents::num_watching() const {
  absl::MutexLock lock(&mutex_);
  int watching = 0;
  for (const Agent& agent : agents_) watching += agent.watches > 0 ? 1 : 0;
  return watching;
}

void GroupAgents::Report(const v1::StepReport& report) {
  absl::MutexLock lock(&mutex_);
  // The counts by micro-batch and layer are large and of no use here.
  v1::StepReport kept = report;
  kept.clear_computed_tokens();
  agents_[report.rank()].last_report = std::move(kept);
}

std::vector<v1::AgentStatus> GroupAgents::Statuses() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::AgentStatus> statuses;
  for (size_t rank = 0; rank < agents_.size(); ++rank) {
    const Agent& agent = agents_[rank];
    if (!agent.known && agent.watches == 0 && !agent.last_report.has_value()) continue;
    v1::AgentStatus& status = statuses.emplace_back();
    status.set_ep_group(job_->groups[group_].name);
    status.set_rank(rank);
    status.set_host(agent.info.host());
    status.set_watching(agent.watches > 0);
    if (agent.last_report.has_value()) {
      status.set_last_step(agent.last_report->step());
      status.set_last_outcome(agent.last_report->outcome());
      status.set_last_reason(agent.last_report->reason());
    }
  }
  return statuses;
}

}  // namespace relibra::server

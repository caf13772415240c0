// The worker agents of one EP group: who they are, who watches, what they last reported.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_GROUP_AGENTS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_GROUP_AGENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/server/job.h"
#include "planner_service/server/memory_account.h"
#include "relibra/v1/agent.pb.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {

// Agents join in rounds. A round is complete when every rank has joined it; a rank that joins a
// complete round again with the incarnation it had is told the same members once more, and one with
// a newer incarnation opens the next round, in which all ranks must join anew. So nobody is handed
// the address of a peer's earlier life.
//
// Any thread may call. Callbacks run without a lock held, each exactly once.
class GroupAgents {
 public:
  using Members = std::vector<v1::AgentInfo>;
  using JoinCallback = std::function<void(absl::StatusOr<Members>)>;

  GroupAgents(std::shared_ptr<const Job> job, int group, std::shared_ptr<MemoryAccount> account);

  // Joins, and calls `done` with all members in order of rank once the round is complete; or with
  // ABORTED when a newer incarnation of the rank joins first. An error at once, by `done` as well:
  // FAILED_PRECONDITION when a newer incarnation is known, INVALID_ARGUMENT for a bad field.
  // waiter: a name of its own, from NewWaiter. If Leave or Expire was called for it already, `done`
  // is called with CANCELLED.
  void Join(uint64_t waiter, const v1::AgentInfo& agent, JoinCallback done);

  // A name for one Join.
  uint64_t NewWaiter();

  // Ends the wait of one Join with `status`, if it still waits or has not begun to. The rank stays
  // in the round.
  void Leave(uint64_t waiter, const absl::Status& status);
  // As Leave, DEADLINE_EXCEEDED naming the ranks that have not joined.
  void Expire(uint64_t waiter);
  // Ends all waits, now and from now on, with `status` (not OK).
  void Close(const absl::Status& status);

  void AddWatch(uint32_t rank);
  void RemoveWatch(uint32_t rank);
  // Ranks that watch now.
  int num_watching() const;

  void Report(const v1::StepReport& report);

  // Every rank that ever joined, watched or reported, ascending.
  std::vector<v1::AgentStatus> Statuses() const;

 private:
  struct Waiter {
    uint32_t rank = 0;
    JoinCallback done;
  };
  struct Agent {
    v1::AgentInfo info;  // of its newest incarnation
    MemoryCharge charge;
    bool known = false;     // info is set
    bool in_round = false;  // it has joined the present round
    int watches = 0;
    std::optional<v1::StepReport> last_report;
  };

  absl::Status Enter(const v1::AgentInfo& agent, std::vector<JoinCallback>& superseded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Complete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Members AllMembers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Job> job_;
  const int group_;
  const std::shared_ptr<MemoryAccount> account_;

  mutable absl::Mutex mutex_;
  std::vector<Agent> agents_ ABSL_GUARDED_BY(mutex_);  // [ranks]
  // By name; one that has not begun to wait has no callback yet.
  std::map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_waiter_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_GROUP_AGENTS_H_

#include "worker_agent/session.h"

#include <unistd.h>

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace relibra::agent {
namespace {

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Join(
    const PlannerClientOptions& group, std::unique_ptr<PlannerClient> planner,
    std::unique_ptr<transport::Transport> transport, std::unique_ptr<ExpertStore> store,
    const Placement& placement, const AgentOptions& options, uint32_t from_step,
    absl::Time deadline) {
  v1::AgentInfo self;
  self.set_job(group.job);
  self.set_ep_group(group.ep_group);
  self.set_rank(group.rank);
  self.set_host(HostName());
  self.set_transport(transport->name());
  self.set_transport_address(transport->LocalAddress());
  // A restart is later than what it restarts.
  self.set_incarnation(absl::ToUnixNanos(absl::Now()));
  auto members = planner->JoinGroup(self, deadline);
  if (!members.ok()) return members.status();
  std::vector<std::string> addresses;
  for (const v1::AgentInfo& member : *members) {
    if (member.transport() != transport->name()) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", member.rank(), " uses transport '",
                                                        member.transport(), "', this rank '",
                                                        transport->name(), "'"));
    }
    addresses.push_back(member.transport_address());
  }
  if (absl::Status s = transport->Connect(addresses, deadline); !s.ok()) return s;
  auto agent = Agent::Create(options, *transport, *planner, std::move(store), placement, deadline);
  if (!agent.ok()) return agent.status();
  planner->Watch(from_step);
  return std::unique_ptr<Session>(
      new Session(std::move(planner), std::move(transport), *std::move(agent)));
}

}  // namespace relibra::agent

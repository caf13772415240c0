// How the ranks of a group decide, among themselves, whether a plan becomes the placement.
//
// Three rounds, each an all-gather over the transport, so that every rank decides from the same
// words (the protocol and its failure table are in worker_agent/README.md):
//   offer    "I hold plan <digest>, and these are my homes now"; moves start only if all do
//   ready    "my incoming experts are here and verified"
//   confirm  "I know that all are ready"; only then old homes are overwritten
// and a barrier, after which every rank's new homes are in place.
#ifndef RELIBRA_WORKER_AGENT_AGREEMENT_H_
#define RELIBRA_WORKER_AGENT_AGREEMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/plan.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

enum class Round : uint64_t { kOffer = 1, kReady = 2, kConfirm = 3 };

// What one rank says in a round.
struct Ballot {
  Round round = Round::kOffer;
  bool yes = false;
  uint64_t plan = 0;       // PlanFingerprint; 0 without a plan
  uint64_t placement = 0;  // Placement::Fingerprint of the present homes
};

struct Verdict {
  bool agreed = false;
  // Why not, naming the first rank at odds; the same on every rank.
  std::string reason;
};

// One number for a plan and the pass it is for. Never 0.
uint64_t PlanFingerprint(const StepId& id, const std::string& digest);

// Holds a round. An error says that the group is broken: a rank is gone or late (UNAVAILABLE,
// DEADLINE_EXCEEDED), is in another round, or has other homes (INTERNAL).
absl::StatusOr<Verdict> Vote(transport::Transport& transport, const Ballot& ballot,
                             absl::Time deadline);

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_AGREEMENT_H_

// Replicas within a step: their weights come from the homes, their gradients go back.
#ifndef RELIBRA_WORKER_AGENT_REPLICA_EXCHANGE_H_
#define RELIBRA_WORKER_AGENT_REPLICA_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_agent/expert_store.h"
#include "worker_agent/peer_memory.h"
#include "worker_agent/placement.h"
#include "worker_agent/plan.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

// A (micro-batch, layer)'s life: Prefetch, Wait, [the trainer computes], then ReduceGradients, or
// Release where no gradient is made of what was fetched. While it lives it holds its slots: another
// micro-batch that wants another expert in one of them must wait for its end. A replica that is
// already in its slot is not fetched again. Every rank makes the same calls in the same order.
//
// Used by one thread. Outlived by what it is given.
class ReplicaExchange {
 public:
  struct Traffic {
    uint64_t fetched_bytes = 0;
    uint64_t gradient_bytes = 0;
    uint64_t fetched = 0;  // replicas
    uint64_t kept = 0;     // replicas that were already in their slot
    absl::Duration waited = absl::ZeroDuration();
  };

  ReplicaExchange(transport::Transport& transport, ExpertStore& store, const PeerMemory& peers);

  // A new step with these homes. `plan` is null when the group keeps its old placement: then there
  // are no replicas. Bridges are in their slots already. Both outlive the step.
  void BeginStep(const Plan* plan, const Placement* placement, uint64_t epoch);

  // Starts to fetch the replicas. FAILED_PRECONDITION when a slot is held by another micro-batch.
  absl::Status Prefetch(int layer, int micro_batch);
  // Returns when this rank's replicas are in their slots.
  absl::Status Wait(int layer, int micro_batch, absl::Time deadline);
  // Returns when the gradients of this rank's replicas have left for their homes (and are zero
  // again), and those of its homes' replicas were added, in ascending order of replica ranks.
  // Bridges wait for EndStep. FAILED_PRECONDITION unless Wait was called, and the second time.
  absl::Status ReduceGradients(int layer, int micro_batch, absl::Time deadline);
  // Ends a (micro-batch, layer) without gradients. It may be fetched again.
  absl::Status Release(int layer, int micro_batch);

  // Adds the bridges' gradients to their homes, if wanted, and forgets what is in the slots.
  // FAILED_PRECONDITION naming a (micro-batch, layer) that still lives.
  absl::Status EndStep(bool with_gradients, absl::Time deadline);

  const Traffic& traffic() const { return traffic_; }

 private:
  enum class Stage { kFetching, kPresent, kReduced, kReleased };
  struct Life {
    Stage stage = Stage::kFetching;
    std::vector<transport::Operation> operations;
  };
  using Key = std::pair<int, int>;  // (layer, micro-batch)

  const std::vector<Replica>& ReplicasOf(int layer, int micro_batch) const;
  int& Resident(int rank, int layer, int slot);
  std::string Name(int layer, int micro_batch) const;
  absl::Status CheckSlots(int layer, int micro_batch);
  absl::Status ReturnGradients(int layer, const std::vector<Replica>& replicas, transport::Tag tag,
                               absl::Time deadline);
  absl::Status AddToHome(int layer, int expert, const std::vector<Replica>& replicas,
                         transport::Tag tag, absl::Time deadline);
  // Staging memory for the i-th of an expert's incoming gradients.
  char* Staging(size_t i, uint64_t bytes);

  transport::Transport& transport_;
  ExpertStore& store_;
  const PeerMemory& peers_;
  const Plan* plan_ = nullptr;
  const Placement* placement_ = nullptr;
  uint64_t epoch_ = 0;
  // [ranks, L, R]: the expert in each replica slot of the group, -1 for none. All ranks derive the
  // same, so that a home knows what to send where there are no one-sided gets.
  std::vector<int> resident_;
  std::map<Key, Life> lives_;
  std::vector<std::vector<char>> staging_;
  Traffic traffic_;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_REPLICA_EXCHANGE_H_

// What a trainer calls: one object for each GPU of an EP group.
//
//   auto agent = Agent::Create(options, *transport, *plans, std::move(store), deadline);
//   auto start = agent->BeginStep({.step = 17});        // homes have moved, or stayed: never half
//   for each micro-batch m, layer l:
//     agent->Prefetch(l, m);                            // ahead of time, as far as slots allow
//     agent->Wait(l, m);                                // replicas are in their slots
//     auto map = agent->Map(l, m, ids);                 // where each token goes
//     ...forward and backward on the physical slots of agent->store()...
//     agent->ReduceGradients(l, m);                     // replicas' gradients are in their homes
//   agent->EndStep({...});                              // now the optimizer may write the homes
//   ...update the experts of agent->placement().ExpertsOf(l, rank), zero their gradients...
//
// Rules for the trainer: every rank makes the same calls in the same order. Weights and optimizer
// state of home slots are not written between BeginStep and the end of EndStep, for peers read
// them. When BeginStep is called, home gradients hold nothing that is still needed.
//
// Errors. UNAVAILABLE and DEADLINE_EXCEEDED: a rank is gone or late; FAILED_PRECONDITION: calls in
// the wrong order. After an error of BeginStep or EndStep, or of a transfer, the group is broken:
// every further step is refused, this rank's experts stay where and as they are (see placement()),
// and the group has to be formed anew (Leave, Rejoin). A plan that cannot be applied is no error:
// the step runs on the old placement, and StepStart says why.
#ifndef RELIBRA_WORKER_AGENT_AGENT_H_
#define RELIBRA_WORKER_AGENT_AGENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "relibra/v1/agent.pb.h"
#include "worker_agent/dispatch_map.h"
#include "worker_agent/expert_store.h"
#include "worker_agent/home_mover.h"
#include "worker_agent/move_rounds.h"
#include "worker_agent/peer_memory.h"
#include "worker_agent/placement.h"
#include "worker_agent/plan.h"
#include "worker_agent/plan_source.h"
#include "worker_agent/replica_exchange.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

struct AgentOptions {
  // How long a step waits for its plan before it goes on without.
  absl::Duration plan_timeout = absl::Seconds(10);
  // How long the group may take to come to BeginStep: the slowest rank's lag.
  absl::Duration group_timeout = absl::Minutes(5);
  // How long moves of homes may take; a rank that needs longer votes against the plan.
  absl::Duration move_timeout = absl::Seconds(60);
  // How long the replicas or gradients of one (micro-batch, layer) may take.
  absl::Duration exchange_timeout = absl::Seconds(60);
  // Spare memory for incoming experts: so many a layer, and so many bytes in all. Moves that need
  // more take several rounds.
  int spare_experts = 2;
  uint64_t max_spare_bytes = ~uint64_t{0};
  // One-sided gets are cut into pieces of this size.
  uint64_t chunk_bytes = uint64_t{4} << 20;
};

// How a step begins.
struct StepStart {
  // True: the group has switched to the plan. False: it keeps its placement and has no replicas.
  bool applied = false;
  // Why not; empty when it was.
  std::string reason;
  int micro_batches = 0;       // in the plan; 0 when it is not applied
  int moves = 0;               // homes that changed, in the whole group
  int moves_in = 0;            // of those, to this rank
  int rounds = 0;              // that moves and bridges took
  int bridges = 0;             // in the whole group
  uint64_t brought_bytes = 0;  // to this rank: new homes and bridges
};

struct StepEnd {
  // Return the bridges' gradients: false for passes without a backward pass.
  bool with_gradients = true;
  // (token, choice) pairs that this rank computed, by (micro-batch, layer), micro-batch-major; for
  // the report only.
  std::vector<uint32_t> computed_tokens = {};
};

// Owned and used by one thread.
class Agent {
 public:
  // Every rank of the group creates its agent at the same point; experts lie in order (see
  // Placement::Linear) or as `placement` says. All memory of the store is registered or allocated.
  // transport (connected) and plans outlive the agent.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(
      const AgentOptions& options, transport::Transport& transport, PlanSource& plans,
      std::unique_ptr<ExpertStore> store, const Placement& placement, absl::Time deadline);

  // After the group broke: lets go of the transport, which may then be destroyed.
  void Leave();
  // Forms the group anew over another transport, which every rank of it does at the same point (a
  // rank that was replaced calls Create). A rank that was in doubt whether the group had switched
  // learns it from the others: afterwards all have the same homes, and none is lost.
  absl::Status Rejoin(transport::Transport& transport, absl::Time deadline);
  // True when the group broke after this rank knew that all were ready to switch, and before it
  // knew that all knew. It then holds its old homes and, in spare memory, the new ones.
  bool in_doubt() const { return in_doubt_.has_value(); }

  // Waits for the step's plan, moves homes and fetches bridges, agrees with the group and switches;
  // or keeps the placement.
  absl::StatusOr<StepStart> BeginStep(const StepId& id);

  // See ReplicaExchange.
  absl::Status Prefetch(int layer, int micro_batch);
  absl::Status Wait(int layer, int micro_batch);
  absl::Status ReduceGradients(int layer, int micro_batch);
  absl::Status Release(int layer, int micro_batch);

  // The instances and this rank's quotas of a (layer, micro-batch), and the map of its tokens.
  Instances InstancesAt(int layer, int micro_batch) const;
  absl::StatusOr<DispatchMap> Map(int layer, int micro_batch, const LayerIds& ids);

  // Ends the step once every rank is there, and reports it to the planner.
  absl::Status EndStep(const StepEnd& end);

  // Where experts live now. To checkpoint: write them in logical order.
  const Placement& placement() const { return placement_; }
  ExpertStore& store() { return *store_; }
  // The plan that the present step follows, or null.
  const Plan* plan() const { return plan_.get(); }
  // The present step's figures so far.
  const v1::StepReport& report() const { return report_; }

 private:
  Agent(const AgentOptions& options, PlanSource& plans, std::unique_ptr<ExpertStore> store,
        const Placement& placement)
      : options_(options), plans_(plans), store_(std::move(store)), placement_(placement) {}

  // The plan and the way to it, or why this rank cannot follow it.
  struct Proposal {
    std::shared_ptr<const Plan> plan;
    std::vector<MoveRound> rounds;
  };
  // Exchanges memory handles and settles who is home to what.
  absl::Status Form(transport::Transport& transport, absl::Time deadline);
  absl::Status Settle(absl::Time deadline);
  void Install(const MoveRound& round);
  absl::StatusOr<Proposal> Propose(const StepId& id);
  RoundLimits Limits() const;
  // OK and a reason: the placement is kept.
  absl::StatusOr<std::string> AgreeAndSwitch(const absl::StatusOr<Proposal>& proposal);
  // One round: move, ready, confirm, install, barrier. OK and a reason: nothing was installed.
  absl::StatusOr<std::string> SwitchRound(const MoveRound& round, uint64_t plan);
  // Goes back to these homes.
  absl::Status Undo(const std::vector<std::vector<int32_t>>& homes, uint64_t plan);
  absl::Status InStep() const;
  absl::Status Broken(const absl::Status& status);
  void Report(v1::StepOutcome outcome, const std::string& reason);

  const AgentOptions options_;
  PlanSource& plans_;
  std::unique_ptr<ExpertStore> store_;
  Placement placement_;
  std::optional<MoveRound> in_doubt_;
  // Of the group as it is formed now; null between Leave and Rejoin.
  transport::Transport* transport_ = nullptr;
  std::unique_ptr<PeerMemory> peers_;
  std::unique_ptr<HomeMover> mover_;
  std::unique_ptr<ReplicaExchange> replicas_;
  std::shared_ptr<const Plan> plan_;
  uint64_t epoch_ = 0;
  int rounds_in_step_ = 0;
  bool in_step_ = false;
  // Why the group is broken; OK while it is not.
  absl::Status broken_;
  v1::StepReport report_;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_AGENT_H_

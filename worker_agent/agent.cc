#include "worker_agent/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker_agent/agreement.h"

namespace relibra::agent {

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(
    const AgentOptions& options, transport::Transport& transport, PlanSource& plans,
    std::unique_ptr<ExpertStore> store, const Placement& placement, absl::Time deadline) {
  auto agent = std::unique_ptr<Agent>(new Agent(options, plans, std::move(store), placement));
  if (absl::Status s = agent->Form(transport, deadline); !s.ok()) return s;
  return agent;
}

absl::Status Agent::Form(transport::Transport& transport, absl::Time deadline) {
  auto peers = PeerMemory::Exchange(transport, *store_, options_.chunk_bytes, deadline);
  if (!peers.ok()) return peers.status();
  transport_ = &transport;
  peers_ = *std::move(peers);
  mover_ = std::make_unique<HomeMover>(transport, *store_, *peers_);
  replicas_ = std::make_unique<ReplicaExchange>(transport, *store_, *peers_);
  return Settle(deadline);
}

// Why this is right: a rank has new homes only if it passed `confirm`, so every rank had passed
// `ready` and is in doubt or has new homes too. A rank that is not in doubt and has old homes did
// not pass `ready`, so none passed `confirm`, and every rank still has its old homes. Without
// either kind all are in doubt, hold both, and take the new ones.
absl::Status Agent::Settle(absl::Time deadline) {
  const uint64_t now = placement_.Fingerprint();
  const uint64_t next = in_doubt_ ? in_doubt_->after.Fingerprint() : now;
  const uint64_t mine[] = {now, next, epoch_};
  auto all = transport_->AllGather(mine, deadline);
  if (!all.ok()) return all.status();
  bool others_have_old = false;
  for (int r = 0; r < transport_->size(); ++r) {
    const uint64_t* theirs = all->data() + static_cast<ptrdiff_t>(r) * 3;
    others_have_old |= theirs[0] == theirs[1] && theirs[0] == now && now != next;
    epoch_ = std::max(epoch_, theirs[2]);
  }
  if (in_doubt_ && !others_have_old) Install(*in_doubt_);
  in_doubt_.reset();

  const uint64_t settled = placement_.Fingerprint();
  all = transport_->AllGather({&settled, 1}, deadline);
  if (!all.ok()) return all.status();
  for (int r = 0; r < transport_->size(); ++r) {
    if ((*all)[r] != settled) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, " has other homes than rank ",
                                                        transport_->rank(),
                                                        ": no group can be formed"));
    }
  }
  broken_ = absl::OkStatus();
  in_step_ = false;
  return absl::OkStatus();
}

void Agent::Leave() {
  if (broken_.ok()) broken_ = absl::FailedPreconditionError("this rank has left the group");
  plan_ = nullptr;
  replicas_.reset();
  mover_.reset();
  peers_.reset();
  transport_ = nullptr;
}

absl::Status Agent::Rejoin(transport::Transport& transport, absl::Time deadline) {
  Leave();
  return Form(transport, deadline);
}

void Agent::Install(const MoveRound& round) {
  mover_->Install(round.transfers);
  placement_ = round.after;
}

absl::Status Agent::Broken(const absl::Status& status) {
  if (broken_.ok()) {
    broken_ = status;
    Report(v1::STEP_OUTCOME_FAILED, std::string(status.message()));
  }
  return status;
}

absl::StatusOr<Agent::Proposal> Agent::Propose(const StepId& id) {
  auto plan = plans_.WaitForPlan(id, absl::Now() + options_.plan_timeout);
  if (!plan.ok()) return plan.status();
  std::vector<std::vector<int32_t>> homes;
  homes.reserve((*plan)->layers.size());
  for (const LayerPlan& layer : (*plan)->layers) homes.push_back(layer.home_rank);
  // The moves are those from where experts really are: the planner may have believed that an
  // earlier plan was applied.
  const RoundLimits limits = Limits();
  if (limits.in_all < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("spare memory may take ", options_.max_spare_bytes,
                     " bytes, one expert needs ", store_->MovingBytes()));
  }
  auto rounds = MoveRounds(placement_, homes, store_->shape(), limits);
  if (!rounds.ok()) return rounds.status();
  const Placement next = rounds->empty() ? placement_ : rounds->back().after;
  for (MoveRound& bridges : BridgeRounds(next, **plan, store_->shape(), limits)) {
    rounds->push_back(std::move(bridges));
  }
  return Proposal{*std::move(plan), *std::move(rounds)};
}

RoundLimits Agent::Limits() const {
  return {.per_layer = std::max(options_.spare_experts, 1),
          .in_all = static_cast<int64_t>(
              std::min<uint64_t>(options_.max_spare_bytes / store_->MovingBytes(), 1 << 30))};
}

absl::StatusOr<std::string> Agent::AgreeAndSwitch(const absl::StatusOr<Proposal>& proposal) {
  const bool have_plan = proposal.ok();
  const uint64_t plan = have_plan ? PlanFingerprint(proposal->plan->id, proposal->plan->digest) : 0;
  // The offer is also the barrier after which every rank's homes are at rest.
  const absl::Time offered = absl::Now();
  absl::StatusOr<Verdict> verdict = Vote(*transport_,
                                         {.round = Round::kOffer,
                                          .yes = have_plan,
                                          .plan = plan,
                                          .placement = placement_.Fingerprint()},
                                         offered + options_.group_timeout);
  if (!verdict.ok()) return verdict.status();
  report_.set_agree_seconds(absl::ToDoubleSeconds(absl::Now() - offered));
  if (!have_plan) {
    return absl::StrCat("rank ", transport_->rank(), ": ", proposal.status().message());
  }
  if (!verdict->agreed) return verdict->reason;

  const std::vector<std::vector<int32_t>> homes_before = placement_.HomeRanks();
  std::string reason;
  mover_->Restart();
  const absl::Time start = absl::Now();
  for (const MoveRound& round : proposal->rounds) {
    absl::StatusOr<std::string> kept = SwitchRound(round, plan);
    if (!kept.ok()) return kept.status();
    reason = *std::move(kept);
    if (reason.empty()) continue;
    // Never half: the rounds before this one are taken back.
    if (absl::Status s = Undo(homes_before, plan); !s.ok()) return s;
    break;
  }
  report_.set_move_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  report_.set_moved_bytes(mover_->brought_bytes());
  return reason;
}

absl::StatusOr<std::string> Agent::SwitchRound(const MoveRound& round, uint64_t plan) {
  Ballot ballot{.round = Round::kReady, .plan = plan, .placement = placement_.Fingerprint()};
  const absl::Time move_deadline = absl::Now() + options_.move_timeout;
  const absl::Status brought =
      mover_->Bring(round.transfers, epoch_, rounds_in_step_++, move_deadline);

  // A rank that failed at once votes now; the others may take until their move deadline.
  const absl::Time vote_deadline = move_deadline + options_.exchange_timeout;
  ballot.yes = brought.ok();
  absl::StatusOr<Verdict> verdict = Vote(*transport_, ballot, vote_deadline);
  if (!verdict.ok()) return verdict.status();
  if (!brought.ok()) return absl::StrCat("rank ", transport_->rank(), ": ", brought.message());
  if (!verdict->agreed) return verdict->reason;

  in_doubt_ = round;
  ballot.round = Round::kConfirm;
  verdict = Vote(*transport_, ballot, vote_deadline + options_.exchange_timeout);
  if (!verdict.ok()) return verdict.status();
  if (!verdict->agreed) return absl::InternalError(verdict->reason);
  Install(*in_doubt_);
  in_doubt_.reset();
  // Peers read the new homes without asking: all of them must be in place.
  absl::Status s = transport_->Barrier(vote_deadline + 2 * options_.exchange_timeout);
  if (!s.ok()) return s;
  return std::string();
}

absl::Status Agent::Undo(const std::vector<std::vector<int32_t>>& homes, uint64_t plan) {
  const auto rounds = MoveRounds(placement_, homes, store_->shape(), Limits());
  if (!rounds.ok()) return rounds.status();
  for (const MoveRound& round : *rounds) {
    absl::StatusOr<std::string> kept = SwitchRound(round, plan);
    if (!kept.ok()) return kept.status();
    if (!kept->empty()) {
      return absl::UnavailableError(
          absl::StrCat("a plan was not applied, and taking it back failed too: ", *kept));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepStart> Agent::BeginStep(const StepId& id) {
  if (!broken_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the group is broken: ", broken_.message()));
  }
  if (in_step_) return absl::FailedPreconditionError("the step before has not ended");
  ++epoch_;
  rounds_in_step_ = 0;
  plan_ = nullptr;
  report_.Clear();
  report_.set_step(id.step);
  report_.set_policy_version(id.policy_version);
  report_.set_pass(id.pass);
  report_.set_rank(transport_->rank());

  const absl::StatusOr<Proposal> proposal = Propose(id);
  absl::StatusOr<std::string> kept = AgreeAndSwitch(proposal);
  if (!kept.ok()) return Broken(kept.status());

  StepStart start;
  start.applied = kept->empty();
  start.reason = *kept;
  if (start.applied) {
    plan_ = proposal->plan;
    report_.set_digest(plan_->digest);
    start.micro_batches = static_cast<int>(plan_->layers[0].micro_batches.size());
    start.rounds = static_cast<int>(proposal->rounds.size());
    for (const MoveRound& round : proposal->rounds) {
      for (const Transfer& t : round.transfers) {
        (t.bridge ? start.bridges : start.moves) += 1;
        if (!t.bridge && t.to_rank == transport_->rank()) ++start.moves_in;
      }
    }
    start.brought_bytes = mover_->brought_bytes();
  }
  report_.set_outcome(start.applied ? v1::STEP_OUTCOME_APPLIED : v1::STEP_OUTCOME_KEPT_OLD);
  report_.set_reason(start.reason);
  replicas_->BeginStep(plan_.get(), &placement_, epoch_);
  in_step_ = true;
  return start;
}

absl::Status Agent::InStep() const {
  if (in_step_ && replicas_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("no step has begun");
}

absl::Status Agent::Prefetch(int layer, int micro_batch) {
  if (absl::Status s = InStep(); !s.ok()) return s;
  return replicas_->Prefetch(layer, micro_batch);
}

absl::Status Agent::Wait(int layer, int micro_batch) {
  if (absl::Status s = InStep(); !s.ok()) return s;
  const absl::Status s =
      replicas_->Wait(layer, micro_batch, absl::Now() + options_.exchange_timeout);
  return s.ok() || absl::IsFailedPrecondition(s) ? s : Broken(s);
}

absl::Status Agent::ReduceGradients(int layer, int micro_batch) {
  if (absl::Status s = InStep(); !s.ok()) return s;
  const absl::Status s =
      replicas_->ReduceGradients(layer, micro_batch, absl::Now() + options_.exchange_timeout);
  return s.ok() || absl::IsFailedPrecondition(s) ? s : Broken(s);
}

absl::Status Agent::Release(int layer, int micro_batch) {
  if (absl::Status s = InStep(); !s.ok()) return s;
  return replicas_->Release(layer, micro_batch);
}

Instances Agent::InstancesAt(int layer, int micro_batch) const {
  const MicroBatchPlan* planned = nullptr;
  if (plan_ != nullptr &&
      static_cast<size_t>(micro_batch) < plan_->layers[layer].micro_batches.size()) {
    planned = &plan_->layers[layer].micro_batches[micro_batch];
  }
  return InstancesOf(store_->shape(), placement_, layer, planned);
}

absl::StatusOr<DispatchMap> Agent::Map(int layer, int micro_batch, const LayerIds& ids) {
  absl::StatusOr<DispatchMap> map =
      MapTokens(store_->shape(), InstancesAt(layer, micro_batch), ids);
  if (map.ok()) report_.set_unplanned_tokens(report_.unplanned_tokens() + map->unplanned);
  return map;
}

absl::Status Agent::EndStep(const StepEnd& end) {
  if (absl::Status in_step = InStep(); !in_step.ok()) return in_step;
  absl::Status s = replicas_->EndStep(end.with_gradients, absl::Now() + options_.exchange_timeout);
  if (absl::IsFailedPrecondition(s)) return s;
  // Until every rank is here, some may still read homes of this one.
  if (s.ok()) s = transport_->Barrier(absl::Now() + options_.group_timeout);
  if (!s.ok()) return Broken(s);
  in_step_ = false;
  const ReplicaExchange::Traffic& traffic = replicas_->traffic();
  report_.set_replica_bytes(traffic.fetched_bytes);
  report_.set_gradient_bytes(traffic.gradient_bytes);
  report_.set_replica_seconds(absl::ToDoubleSeconds(traffic.waited));
  report_.mutable_computed_tokens()->Assign(end.computed_tokens.begin(), end.computed_tokens.end());
  Report(report_.outcome(), report_.reason());
  return absl::OkStatus();
}

void Agent::Report(v1::StepOutcome outcome, const std::string& reason) {
  report_.set_outcome(outcome);
  report_.set_reason(reason);
  plans_.Report(report_);
}

}  // namespace relibra::agent

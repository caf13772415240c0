#include "worker_agent/replica_exchange.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/accumulate.h"
#include "worker_agent/channels.h"

namespace relibra::agent {

using transport::Operation;
using transport::Tag;

ReplicaExchange::ReplicaExchange(transport::Transport& transport, ExpertStore& store,
                                 const PeerMemory& peers)
    : transport_(transport),
      store_(store),
      peers_(peers),
      resident_(static_cast<size_t>(store.shape().ranks()) * store.shape().layers() *
                    std::max(1, store.shape().replica_slots),
                -1) {}

int& ReplicaExchange::Resident(int rank, int layer, int slot) {
  const GroupShape& shape = store_.shape();
  return resident_[(static_cast<size_t>(rank) * shape.layers() + layer) *
                       std::max(1, shape.replica_slots) +
                   slot];
}

std::string ReplicaExchange::Name(int layer, int micro_batch) const {
  return absl::StrCat("layer ", store_.shape().layer_ids[layer], ", micro-batch ", micro_batch);
}

void ReplicaExchange::BeginStep(const Plan* plan, const Placement* placement, uint64_t epoch) {
  plan_ = plan;
  placement_ = placement;
  epoch_ = epoch;
  traffic_ = {};
  lives_.clear();
  std::fill(resident_.begin(), resident_.end(), -1);
  for (int l = 0; l < store_.shape().layers(); ++l) {
    for (const Replica& r : ReplicasOf(l, 0)) {
      if (!r.bridge) continue;
      Resident(r.rank, l, r.slot) = r.expert;
      if (r.rank == store_.rank()) store_.ZeroGradients(l, store_.shape().home_slots() + r.slot);
    }
  }
}

const std::vector<Replica>& ReplicaExchange::ReplicasOf(int layer, int micro_batch) const {
  static const std::vector<Replica>* const kNone = new std::vector<Replica>();
  if (plan_ == nullptr) return *kNone;
  const std::vector<MicroBatchPlan>& all = plan_->layers[layer].micro_batches;
  return static_cast<size_t>(micro_batch) < all.size() ? all[micro_batch].replicas : *kNone;
}

// A slot whose expert a living (micro-batch, layer) uses must not get another one.
absl::Status ReplicaExchange::CheckSlots(int layer, int micro_batch) {
  for (const auto& [key, life] : lives_) {
    if (key.first != layer || life.stage == Stage::kReduced || life.stage == Stage::kReleased) {
      continue;
    }
    for (const Replica& held : ReplicasOf(layer, key.second)) {
      for (const Replica& wanted : ReplicasOf(layer, micro_batch)) {
        if (held.rank != wanted.rank || held.slot != wanted.slot || held.expert == wanted.expert) {
          continue;
        }
        return absl::FailedPreconditionError(absl::StrCat(
            Name(layer, micro_batch), ": slot ", wanted.slot, " of rank ", wanted.rank,
            " is held by micro-batch ", key.second, ", whose gradients are not reduced yet"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaExchange::Prefetch(int layer, int micro_batch) {
  const auto found = lives_.find({layer, micro_batch});
  if (found != lives_.end() && found->second.stage != Stage::kReleased) {
    return absl::FailedPreconditionError(
        absl::StrCat(Name(layer, micro_batch), " was fetched before"));
  }
  if (absl::Status s = CheckSlots(layer, micro_batch); !s.ok()) return s;
  Life life;
  const int rank = store_.rank();
  for (const Replica& r : ReplicasOf(layer, micro_batch)) {
    if (r.bridge) continue;
    int& resident = Resident(r.rank, layer, r.slot);
    if (resident == r.expert) {
      if (r.rank == rank) ++traffic_.kept;
      continue;
    }
    resident = r.expert;
    const int slot = store_.shape().home_slots() + r.slot;
    const HomeSlot home{placement_->RankOf(layer, r.expert), layer,
                        placement_->SlotOf(layer, r.expert)};
    peers_.Fetch(
        home, r.rank, StepTag(kReplicaChannel, epoch_, micro_batch, layer),
        [](const BufferSpec& spec) { return spec.role == BufferRole::kWeight; },
        [&](int buffer) { return store_.Buffer(layer, slot, buffer); }, life.operations);
    if (r.rank != rank) continue;
    store_.ZeroGradients(layer, slot);
    traffic_.fetched_bytes += store_.WeightBytes();
    ++traffic_.fetched;
  }
  lives_[{layer, micro_batch}] = std::move(life);
  return absl::OkStatus();
}

absl::Status ReplicaExchange::Wait(int layer, int micro_batch, absl::Time deadline) {
  const auto found = lives_.find({layer, micro_batch});
  if (found == lives_.end() || found->second.stage == Stage::kReleased) {
    return absl::FailedPreconditionError(absl::StrCat(Name(layer, micro_batch), " is not fetched"));
  }
  // Kept replicas may still be on their way for the micro-batch before: its operations count too.
  const absl::Time start = absl::Now();
  for (auto& [key, life] : lives_) {
    if (key.first != layer || life.operations.empty()) continue;
    absl::Status s = transport_.Wait(life.operations, deadline);
    if (!s.ok()) {
      return absl::Status(s.code(), absl::StrCat("fetching replicas, ", Name(layer, key.second),
                                                 ": ", s.message()));
    }
    life.operations.clear();
  }
  traffic_.waited += absl::Now() - start;
  if (found->second.stage == Stage::kFetching) found->second.stage = Stage::kPresent;
  return absl::OkStatus();
}

absl::Status ReplicaExchange::ReduceGradients(int layer, int micro_batch, absl::Time deadline) {
  const auto found = lives_.find({layer, micro_batch});
  if (found == lives_.end() || found->second.stage != Stage::kPresent) {
    const bool twice = found != lives_.end() && found->second.stage == Stage::kReduced;
    return absl::FailedPreconditionError(
        absl::StrCat(Name(layer, micro_batch),
                     twice ? ": its gradients were reduced before" : " was not waited for"));
  }
  std::vector<Replica> replicas;
  for (const Replica& r : ReplicasOf(layer, micro_batch)) {
    if (!r.bridge) replicas.push_back(r);
  }
  absl::Status s = ReturnGradients(layer, replicas,
                                   StepTag(kGradientChannel, epoch_, micro_batch, layer), deadline);
  if (!s.ok()) {
    return absl::Status(s.code(), absl::StrCat("returning gradients, ", Name(layer, micro_batch),
                                               ": ", s.message()));
  }
  found->second.stage = Stage::kReduced;
  return absl::OkStatus();
}

absl::Status ReplicaExchange::Release(int layer, int micro_batch) {
  const auto found = lives_.find({layer, micro_batch});
  if (found == lives_.end() || found->second.stage != Stage::kPresent) {
    return absl::FailedPreconditionError(
        absl::StrCat(Name(layer, micro_batch), " was not waited for, or has ended"));
  }
  found->second.stage = Stage::kReleased;
  return absl::OkStatus();
}

// `replicas` ascend by (expert, rank): so do the messages of each sender, and so the home adds.
absl::Status ReplicaExchange::ReturnGradients(int layer, const std::vector<Replica>& replicas,
                                              Tag tag, absl::Time deadline) {
  const int rank = store_.rank();
  const int home_slots = store_.shape().home_slots();
  std::vector<Operation> sends;
  for (const Replica& r : replicas) {
    if (r.rank != rank) continue;
    for (int b = 0; b < static_cast<int>(store_.specs().size()); ++b) {
      const BufferSpec& spec = store_.specs()[b];
      if (spec.role != BufferRole::kGradient) continue;
      sends.push_back(transport_.Send(placement_->RankOf(layer, r.expert), tag,
                                      store_.Buffer(layer, home_slots + r.slot, b),
                                      spec.replica_bytes()));
      traffic_.gradient_bytes += spec.replica_bytes();
    }
  }
  for (auto first = replicas.begin(); first != replicas.end();) {
    const auto last = std::find_if(first, replicas.end(),
                                   [&](const Replica& r) { return r.expert != first->expert; });
    if (placement_->RankOf(layer, first->expert) == rank) {
      absl::Status s = AddToHome(layer, first->expert, {first, last}, tag, deadline);
      if (!s.ok()) return s;
    }
    first = last;
  }
  if (absl::Status s = transport_.Wait(sends, deadline); !s.ok()) return s;
  for (const Replica& r : replicas) {
    if (r.rank == rank) store_.ZeroGradients(layer, home_slots + r.slot);
  }
  return absl::OkStatus();
}

absl::Status ReplicaExchange::AddToHome(int layer, int expert, const std::vector<Replica>& replicas,
                                        Tag tag, absl::Time deadline) {
  std::vector<Operation> receives;
  std::vector<std::vector<const void*>> incoming(store_.specs().size());
  size_t staged = 0;
  for (const Replica& r : replicas) {
    for (size_t b = 0; b < store_.specs().size(); ++b) {
      const BufferSpec& spec = store_.specs()[b];
      if (spec.role != BufferRole::kGradient) continue;
      char* memory = Staging(staged++, spec.replica_bytes());
      receives.push_back(transport_.Receive(r.rank, tag, memory, spec.replica_bytes()));
      incoming[b].push_back(memory);
    }
  }
  if (absl::Status s = transport_.Wait(receives, deadline); !s.ok()) return s;
  for (size_t b = 0; b < store_.specs().size(); ++b) {
    const BufferSpec& spec = store_.specs()[b];
    if (spec.role != BufferRole::kGradient) continue;
    char* home = store_.Buffer(layer, placement_->SlotOf(layer, expert), static_cast<int>(b));
    absl::Status s =
        AccumulateGradients(Executor::Cpu(), reinterpret_cast<float*>(home), incoming[b],
                            spec.replica_type, static_cast<int64_t>(spec.bytes / sizeof(float)));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

char* ReplicaExchange::Staging(size_t i, uint64_t bytes) {
  while (staging_.size() <= i) staging_.emplace_back();
  if (staging_[i].size() < bytes) staging_[i].resize(bytes);
  return staging_[i].data();
}

absl::Status ReplicaExchange::EndStep(bool with_gradients, absl::Time deadline) {
  for (const auto& [key, life] : lives_) {
    if (life.stage == Stage::kFetching || life.stage == Stage::kPresent) {
      return absl::FailedPreconditionError(
          absl::StrCat(Name(key.first, key.second),
                       " was fetched, but its gradients were neither reduced nor released"));
    }
  }
  for (int l = 0; l < store_.shape().layers() && with_gradients; ++l) {
    std::vector<Replica> bridges;
    for (const Replica& r : ReplicasOf(l, 0)) {
      if (r.bridge) bridges.push_back(r);
    }
    absl::Status s =
        ReturnGradients(l, bridges, StepTag(kBridgeGradientChannel, epoch_, 0, l), deadline);
    if (!s.ok()) {
      return absl::Status(s.code(), absl::StrCat("returning gradients of bridges, layer ",
                                                 store_.shape().layer_ids[l], ": ", s.message()));
    }
  }
  std::fill(resident_.begin(), resident_.end(), -1);
  plan_ = nullptr;
  return absl::OkStatus();
}

}  // namespace relibra::agent

#include "worker_agent/transport/in_process.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "worker_agent/transport/collectives.h"

namespace relibra::transport {
namespace {

using StatePtr = std::shared_ptr<Operation::State>;

// What the ranks share. All of it is guarded by one mutex; every change wakes all waiters.
class Group : public InProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  Group(int size, InProcessOptions options)
      : options_(std::move(options)),
        size_(size),
        dead_(size, false),
        starts_(size),
        posted_(size),
        arrived_(size) {}

  std::unique_ptr<Transport> Attach(int rank) override;
  void Kill(int rank) override {
    absl::MutexLock lock(&mutex_);
    KillLocked(rank);
  }
  int64_t faults_injected() const override {
    absl::MutexLock lock(&mutex_);
    return faults_injected_;
  }

  int size() const { return size_; }
  const InProcessOptions& options() const { return options_; }

  uint64_t AddRegion(int rank, void* base, size_t bytes) {
    absl::MutexLock lock(&mutex_);
    regions_.push_back({rank, static_cast<char*>(base), bytes});
    return regions_.size() - 1;
  }
  void RemoveRegion(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    regions_[id].base = nullptr;
  }

  Operation Get(int rank, int peer, uint64_t region, size_t offset, void* buffer, size_t bytes);
  Operation Send(int rank, int to, Tag tag, const void* data, size_t bytes);
  Operation Receive(int rank, int from, Tag tag, void* buffer, size_t capacity);
  absl::Status Wait(int rank, absl::Span<const Operation> operations, absl::Time deadline);
  // Forgets what the rank waits for: its buffers are no longer written.
  void Detach(int rank);

 private:
  struct RegionEntry {
    int rank;
    char* base;
    size_t bytes;
  };
  struct Message {
    int from;
    Tag tag;
    std::string data;
    absl::Time ready;
  };
  struct PostedReceive {
    int from;
    Tag tag;
    void* buffer;
    size_t capacity;
    StatePtr state;
  };
  struct PendingGet {
    int rank;
    int peer;
    uint64_t region;
    size_t offset;
    void* buffer;
    size_t bytes;
    bool corrupt;
    absl::Time ready;
    StatePtr state;
  };

  static absl::Status DeadError(int rank) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is dead"));
  }
  // The fault that this start triggers, if any.
  std::optional<Fault> Count(int rank, Fault::Operation operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KillLocked(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Delivers what can be delivered by now; returns when the next delayed thing is due.
  absl::Time Deliver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Copy(const PendingGet& get) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time Match(int receiver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const InProcessOptions options_;
  const int size_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> dead_ ABSL_GUARDED_BY(mutex_);                        // [ranks]
  std::vector<std::array<int64_t, 3>> starts_ ABSL_GUARDED_BY(mutex_);    // [ranks], by operation
  std::vector<std::list<PostedReceive>> posted_ ABSL_GUARDED_BY(mutex_);  // [receivers]
  std::vector<std::deque<Message>> arrived_ ABSL_GUARDED_BY(mutex_);      // [receivers]
  std::list<PendingGet> gets_ ABSL_GUARDED_BY(mutex_);
  std::vector<RegionEntry> regions_ ABSL_GUARDED_BY(mutex_);
  int64_t faults_injected_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::optional<Fault> Group::Count(int rank, Fault::Operation operation) {
  const int64_t any = starts_[rank][0]++;
  const int64_t own = starts_[rank][static_cast<int>(operation)]++;
  for (const Fault& fault : options_.faults) {
    if (fault.rank != rank) continue;
    const bool hit = fault.operation == Fault::Operation::kAny
                         ? fault.at == any
                         : fault.operation == operation && fault.at == own;
    if (!hit) continue;
    ++faults_injected_;
    if (fault.kind == Fault::Kind::kKill) KillLocked(rank);
    return fault;
  }
  return std::nullopt;
}

void Group::KillLocked(int rank) {
  dead_[rank] = true;
  for (int receiver = 0; receiver < size(); ++receiver) {
    posted_[receiver].remove_if([&](const PostedReceive& receive) {
      if (receiver != rank && (receive.from != rank || !options_.detects_peer_death)) return false;
      receive.state->Finish(DeadError(rank), 0);
      return true;
    });
  }
  gets_.remove_if([&](const PendingGet& get) {
    if (get.rank != rank && (get.peer != rank || !options_.detects_peer_death)) return false;
    get.state->Finish(DeadError(rank), 0);
    return true;
  });
  changed_.SignalAll();
}

void Group::Detach(int rank) {
  absl::MutexLock lock(&mutex_);
  posted_[rank].clear();
  gets_.remove_if([&](const PendingGet& get) { return get.rank == rank; });
}

void Group::Copy(const PendingGet& get) {
  const RegionEntry& region = regions_[get.region];
  if (region.base == nullptr) {
    get.state->Finish(absl::UnavailableError(absl::StrCat("rank ", get.peer, " closed the region")),
                      0);
    return;
  }
  std::memcpy(get.buffer, region.base + get.offset, get.bytes);
  if (get.corrupt && get.bytes > 0) static_cast<char*>(get.buffer)[get.bytes / 2] ^= 1;
  get.state->Finish(absl::OkStatus(), get.bytes);
}

// Gives each posted receive the first message of its source and tag, unless that is delayed.
absl::Time Group::Match(int receiver) {
  const absl::Time now = absl::Now();
  absl::Time next = absl::InfiniteFuture();
  std::list<PostedReceive>& posted = posted_[receiver];
  for (auto receive = posted.begin(); receive != posted.end();) {
    std::deque<Message>& arrived = arrived_[receiver];
    const auto message = std::find_if(arrived.begin(), arrived.end(), [&](const Message& m) {
      return m.from == receive->from && m.tag.channel == receive->tag.channel &&
             m.tag.value == receive->tag.value;
    });
    if (message == arrived.end() || message->ready > now) {
      if (message != arrived.end()) next = std::min(next, message->ready);
      ++receive;
      continue;
    }
    if (message->data.size() > receive->capacity) {
      receive->state->Finish(absl::InvalidArgumentError(absl::StrCat(
                                 "rank ", message->from, " sent ", message->data.size(),
                                 " bytes into a buffer of ", receive->capacity)),
                             0);
    } else {
      if (!message->data.empty()) {
        std::memcpy(receive->buffer, message->data.data(), message->data.size());
      }
      receive->state->Finish(absl::OkStatus(), message->data.size());
    }
    arrived.erase(message);
    receive = posted.erase(receive);
    changed_.SignalAll();
  }
  return next;
}

absl::Time Group::Deliver() {
  absl::Time next = absl::InfiniteFuture();
  for (int receiver = 0; receiver < size(); ++receiver) next = std::min(next, Match(receiver));
  const absl::Time now = absl::Now();
  for (auto get = gets_.begin(); get != gets_.end();) {
    const bool lost = dead_[get->peer];  // only without detects_peer_death: never completes
    if (lost || get->ready > now) {
      if (!lost) next = std::min(next, get->ready);
      ++get;
      continue;
    }
    Copy(*get);
    get = gets_.erase(get);
    changed_.SignalAll();
  }
  return next;
}

Operation Group::Get(int rank, int peer, uint64_t region, size_t offset, void* buffer,
                     size_t bytes) {
  Operation operation;
  operation.state()->peer = peer;
  absl::MutexLock lock(&mutex_);
  const std::optional<Fault> fault = Count(rank, Fault::Operation::kGet);
  if (dead_[rank] || (dead_[peer] && options_.detects_peer_death)) {
    operation.state()->Finish(DeadError(dead_[rank] ? rank : peer), 0);
    return operation;
  }
  PendingGet get{rank, peer, region, offset, buffer, bytes, false, absl::Now(), operation.state()};
  if (fault && fault->kind == Fault::Kind::kDrop) get.ready = absl::InfiniteFuture();
  if (fault && fault->kind == Fault::Kind::kDelay) get.ready += fault->delay;
  if (fault && fault->kind == Fault::Kind::kCorrupt) get.corrupt = true;
  gets_.push_back(get);
  Deliver();
  return operation;
}

Operation Group::Send(int rank, int to, Tag tag, const void* data, size_t bytes) {
  Operation operation;
  operation.state()->peer = to;
  absl::MutexLock lock(&mutex_);
  const std::optional<Fault> fault = Count(rank, Fault::Operation::kSend);
  if (dead_[rank] || (dead_[to] && options_.detects_peer_death)) {
    operation.state()->Finish(DeadError(dead_[rank] ? rank : to), 0);
    return operation;
  }
  Message message{rank, tag,
                  bytes == 0 ? std::string() : std::string(static_cast<const char*>(data), bytes),
                  absl::Now()};
  operation.state()->Finish(absl::OkStatus(), bytes);
  if (fault && fault->kind == Fault::Kind::kDrop) return operation;
  if (fault && fault->kind == Fault::Kind::kDelay) message.ready += fault->delay;
  if (fault && fault->kind == Fault::Kind::kCorrupt && bytes > 0) message.data[bytes / 2] ^= 1;
  arrived_[to].push_back(std::move(message));
  changed_.SignalAll();
  Deliver();
  return operation;
}

Operation Group::Receive(int rank, int from, Tag tag, void* buffer, size_t capacity) {
  Operation operation;
  operation.state()->peer = from;
  operation.state()->receive = true;
  absl::MutexLock lock(&mutex_);
  posted_[rank].push_back({from, tag, buffer, capacity, operation.state()});
  Deliver();
  const bool nothing_more = dead_[rank] || (dead_[from] && options_.detects_peer_death);
  if (nothing_more && !operation.done()) {
    posted_[rank].pop_back();
    operation.state()->Finish(DeadError(dead_[rank] ? rank : from), 0);
  }
  return operation;
}

absl::Status Group::Wait(int rank, absl::Span<const Operation> operations, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const absl::Time next = Deliver();
    const Operation* pending = nullptr;
    for (const Operation& operation : operations) {
      if (!operation.done()) {
        if (pending == nullptr) pending = &operation;
      } else if (!operation.status().ok()) {
        return operation.status();
      }
    }
    if (pending == nullptr) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank, " waited for rank ", pending->state()->peer, " past the deadline"));
    }
    changed_.WaitWithDeadline(&mutex_, std::min(next, deadline));
  }
}

class InProcessRegion : public Region {
 public:
  InProcessRegion(std::shared_ptr<Group> group, uint64_t id, size_t bytes)
      : group_(std::move(group)), id_(id), bytes_(bytes) {}
  ~InProcessRegion() override { group_->RemoveRegion(id_); }
  std::string ExportHandle() const override { return absl::StrCat(id_, " ", bytes_); }

 private:
  std::shared_ptr<Group> group_;
  uint64_t id_;
  size_t bytes_;
};

class InProcessRemoteRegion : public RemoteRegion {
 public:
  InProcessRemoteRegion(int rank, uint64_t id, size_t bytes)
      : rank_(rank), id_(id), bytes_(bytes) {}
  int rank() const override { return rank_; }
  size_t bytes() const override { return bytes_; }
  uint64_t id() const { return id_; }

 private:
  int rank_;
  uint64_t id_;
  size_t bytes_;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~InProcessTransport() override { group_->Detach(rank_); }

  std::string name() const override { return "in-process"; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Capabilities capabilities() const override {
    return {.one_sided_get = group_->options().one_sided_get,
            .background_progress = true,
            .cuda_memory = false,
            .detects_peer_death = group_->options().detects_peer_death};
  }
  std::string LocalAddress() const override { return absl::StrCat("in-process ", rank_); }

  absl::Status Connect(absl::Span<const std::string> addresses, absl::Time) override {
    for (int r = 0; r < size(); ++r) {
      if (addresses.size() != static_cast<size_t>(size()) ||
          addresses[r] != absl::StrCat("in-process ", r)) {
        return absl::InvalidArgumentError(
            absl::StrCat("addresses are not those of the ", size(), " ranks of this group"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Region>> Register(void* base, size_t bytes) override {
    return std::make_unique<InProcessRegion>(group_, group_->AddRegion(rank_, base, bytes), bytes);
  }

  absl::StatusOr<std::unique_ptr<RemoteRegion>> Import(int rank,
                                                       const std::string& handle) override {
    uint64_t id = 0;
    uint64_t bytes = 0;
    const size_t space = handle.find(' ');
    if (space == std::string::npos || !absl::SimpleAtoi(handle.substr(0, space), &id) ||
        !absl::SimpleAtoi(handle.substr(space + 1), &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("not a region handle of an in-process transport (rank ", rank, ")"));
    }
    return std::make_unique<InProcessRemoteRegion>(rank, id, bytes);
  }

  Operation Get(const RemoteRegion& region, size_t offset, void* buffer, size_t bytes) override {
    if (!group_->options().one_sided_get || offset > region.bytes() ||
        bytes > region.bytes() - offset) {
      Operation refused;
      refused.state()->Finish(
          group_->options().one_sided_get
              ? absl::OutOfRangeError(absl::StrCat("get of ", bytes, " bytes at ", offset,
                                                   " of a region of ", region.bytes()))
              : absl::UnimplementedError("this transport has no one-sided get"),
          0);
      return refused;
    }
    const auto& mine = static_cast<const InProcessRemoteRegion&>(region);
    return group_->Get(rank_, mine.rank(), mine.id(), offset, buffer, bytes);
  }
  Operation Send(int to, Tag tag, const void* data, size_t bytes) override {
    return group_->Send(rank_, to, tag, data, bytes);
  }
  Operation Receive(int from, Tag tag, void* buffer, size_t capacity) override {
    return group_->Receive(rank_, from, tag, buffer, capacity);
  }
  absl::Status Wait(absl::Span<const Operation> operations, absl::Time deadline) override {
    return group_->Wait(rank_, operations, deadline);
  }
  void Progress() override {}
  absl::StatusOr<std::vector<uint64_t>> AllGather(absl::Span<const uint64_t> words,
                                                  absl::Time deadline) override {
    return GatherWords(*this, sequence_.fetch_add(1), words, deadline);
  }

 private:
  std::shared_ptr<Group> group_;
  const int rank_;
  std::atomic<uint64_t> sequence_{0};
};

std::unique_ptr<Transport> Group::Attach(int rank) {
  return std::make_unique<InProcessTransport>(shared_from_this(), rank);
}

}  // namespace

std::shared_ptr<InProcessGroup> InProcessGroup::Create(int size, InProcessOptions options) {
  return std::make_shared<Group>(size, std::move(options));
}

}  // namespace relibra::transport

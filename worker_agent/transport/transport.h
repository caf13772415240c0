// How the ranks of one EP group reach each other's memory: one-sided gets, tagged messages, and
// reductions of a few words. Back-ends: UCX (ucx.h), and threads of one process (in_process.h).
//
//   std::unique_ptr<Transport> transport = ...;              // rank 2 of 8
//   transport->Connect(addresses_of_all_ranks, deadline);
//   auto region = transport->Register(base, bytes);          // this rank's memory
//   auto remote = transport->Import(5, handle_from_rank_5);  // rank 5's memory
//   Operation get = transport->Get(**remote, offset, buffer, bytes);
//   absl::Status status = transport->Wait({&get, 1}, deadline);
//
// Failures: no call blocks past its deadline. A peer that died fails the operations that need it
// with UNAVAILABLE, at once where the back-end can tell (Capabilities::detects_peer_death), else
// with DEADLINE_EXCEEDED. A transport on which an operation failed is not repaired: its owner makes
// a new one and joins again.
//
// Threads: every call may come from any thread; the calls of AllGather and AllReduce must come in
// the same order on every rank.
#ifndef RELIBRA_WORKER_AGENT_TRANSPORT_TRANSPORT_H_
#define RELIBRA_WORKER_AGENT_TRANSPORT_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace relibra::transport {

// What a back-end can do; asked of it, never guessed from its name.
struct Capabilities {
  bool one_sided_get = false;        // Get works; otherwise only messages do
  bool background_progress = false;  // peers' gets are served while this rank computes
  bool cuda_memory = false;          // device pointers may be registered and sent
  bool detects_peer_death = false;   // a dead peer is noticed before the deadline
};

// Tells messages of one rank apart. Messages of the same source and tag arrive in order of sending.
// Channels below 32 belong to the agent, the others to the trainer.
struct Tag {
  uint8_t channel = 0;
  uint64_t value = 0;  // below 2^40
};

// This rank's memory, open to the peers' gets while the object lives. The memory outlives it.
class Region {
 public:
  virtual ~Region() = default;
  // What a peer gives to Import: opaque bytes, the same for every peer.
  virtual std::string ExportHandle() const = 0;
};

// A peer's region, as seen from here. Freed before its transport.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  virtual int rank() const = 0;
  virtual size_t bytes() const = 0;
};

// A transfer that was started. Copies refer to the same transfer. Its buffers must stay valid until
// it is done, or, when a Wait for it failed, until its transport is destroyed.
class Operation {
 public:
  struct State {
    std::atomic<bool> done{false};
    // Valid once `done`.
    absl::Status status;
    size_t bytes = 0;
    // Whom it needs, for messages and for telling a dead peer.
    int peer = -1;
    bool receive = false;
    // Buffers that the starter leaves to the operation.
    std::shared_ptr<void> keep_alive;

    void Finish(absl::Status with, size_t transferred) {
      status = std::move(with);
      bytes = transferred;
      done.store(true, std::memory_order_release);
    }
  };

  Operation() : state_(std::make_shared<State>()) {}
  explicit Operation(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const { return state_->done.load(std::memory_order_acquire); }
  // How it ended, and how many bytes it brought (a message may be shorter than its buffer). Only
  // when done().
  const absl::Status& status() const { return state_->status; }
  size_t bytes() const { return state_->bytes; }

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

enum class ReduceOp { kMin, kMax, kSum };

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Capabilities capabilities() const = 0;

  // What the peers need to reach this rank: opaque bytes.
  virtual std::string LocalAddress() const = 0;
  // Makes the peers known: addresses[r] is rank r's LocalAddress(). Once, before any transfer.
  virtual absl::Status Connect(absl::Span<const std::string> addresses, absl::Time deadline) = 0;

  // Opens `bytes` at `base` to the peers.
  virtual absl::StatusOr<std::unique_ptr<Region>> Register(void* base, size_t bytes) = 0;
  // Takes what rank `rank`'s Region exported. INVALID_ARGUMENT when the handle is not one.
  virtual absl::StatusOr<std::unique_ptr<RemoteRegion>> Import(int rank,
                                                               const std::string& handle) = 0;

  // Starts to read `bytes` at `offset` of a peer's region into `buffer`. Needs one_sided_get.
  virtual Operation Get(const RemoteRegion& region, size_t offset, void* buffer, size_t bytes) = 0;
  // Start a message. A receive longer than its buffer is an INVALID_ARGUMENT of the receiver.
  virtual Operation Send(int to, Tag tag, const void* data, size_t bytes) = 0;
  virtual Operation Receive(int from, Tag tag, void* buffer, size_t capacity) = 0;

  // Waits until all are done and returns the first error in their order, or returns early when one
  // failed or the deadline passed (DEADLINE_EXCEEDED, names a rank that is waited for).
  virtual absl::Status Wait(absl::Span<const Operation> operations, absl::Time deadline) = 0;

  // Serves peers for a moment. Only needed between transfers without background_progress.
  virtual void Progress() = 0;

  // Every rank's `words`, in order of ranks: [size(), words.size()]. All ranks give equally many.
  virtual absl::StatusOr<std::vector<uint64_t>> AllGather(absl::Span<const uint64_t> words,
                                                          absl::Time deadline) = 0;

  // Word by word over all ranks; the same result on every rank. Sums wrap.
  absl::StatusOr<std::vector<uint64_t>> AllReduce(absl::Span<const uint64_t> words, ReduceOp op,
                                                  absl::Time deadline);
  // Returns once every rank has called it.
  absl::Status Barrier(absl::Time deadline);
};

}  // namespace relibra::transport

#endif  // RELIBRA_WORKER_AGENT_TRANSPORT_TRANSPORT_H_

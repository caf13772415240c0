// A transport whose process kills itself at its k-th fetch of an expert's buffer, by get or by
// message: a machine that is lost mid-move.
#ifndef RELIBRA_WORKER_AGENT_SELFTEST_DYING_TRANSPORT_H_
#define RELIBRA_WORKER_AGENT_SELFTEST_DYING_TRANSPORT_H_

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_agent/channels.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent::selftest {

// Passes everything on to the transport that it owns.
class DyingTransport : public transport::Transport {
 public:
  // at_fetch: counted from 1.
  DyingTransport(std::unique_ptr<transport::Transport> base, int64_t at_fetch)
      : base_(std::move(base)), fetches_left_(at_fetch) {}

  std::string name() const override { return base_->name(); }
  int rank() const override { return base_->rank(); }
  int size() const override { return base_->size(); }
  transport::Capabilities capabilities() const override { return base_->capabilities(); }
  std::string LocalAddress() const override { return base_->LocalAddress(); }
  absl::Status Connect(absl::Span<const std::string> addresses, absl::Time deadline) override {
    return base_->Connect(addresses, deadline);
  }
  absl::StatusOr<std::unique_ptr<transport::Region>> Register(void* base, size_t bytes) override {
    return base_->Register(base, bytes);
  }
  absl::StatusOr<std::unique_ptr<transport::RemoteRegion>> Import(
      int rank, const std::string& handle) override {
    return base_->Import(rank, handle);
  }
  transport::Operation Get(const transport::RemoteRegion& region, size_t offset, void* buffer,
                           size_t bytes) override {
    Count();
    return base_->Get(region, offset, buffer, bytes);
  }
  transport::Operation Send(int to, transport::Tag tag, const void* data, size_t bytes) override {
    return base_->Send(to, tag, data, bytes);
  }
  transport::Operation Receive(int from, transport::Tag tag, void* buffer,
                               size_t capacity) override {
    if (tag.channel == kMoveChannel || tag.channel == kReplicaChannel) Count();
    return base_->Receive(from, tag, buffer, capacity);
  }
  absl::Status Wait(absl::Span<const transport::Operation> operations,
                    absl::Time deadline) override {
    return base_->Wait(operations, deadline);
  }
  void Progress() override { base_->Progress(); }
  absl::StatusOr<std::vector<uint64_t>> AllGather(absl::Span<const uint64_t> words,
                                                  absl::Time deadline) override {
    return base_->AllGather(words, deadline);
  }

 private:
  void Count() {
    if (--fetches_left_ == 0) std::raise(SIGKILL);
  }

  const std::unique_ptr<transport::Transport> base_;
  int64_t fetches_left_;
};

}  // namespace relibra::agent::selftest

#endif  // RELIBRA_WORKER_AGENT_SELFTEST_DYING_TRANSPORT_H_

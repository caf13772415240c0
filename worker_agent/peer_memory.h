// Brings expert buffers from the home slots of other ranks into this rank's memory.
#ifndef RELIBRA_WORKER_AGENT_PEER_MEMORY_H_
#define RELIBRA_WORKER_AGENT_PEER_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_agent/expert_store.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

// A home slot of some rank, as the source of a fetch.
struct HomeSlot {
  int rank = 0;
  int layer = 0;
  int slot = 0;
};

// Knows where every rank keeps every home slot. With one-sided gets a fetch needs only its
// destination; without, source and destination must both call Fetch, in the same order.
// Owned and used by one thread. Outlived by the transport and the store.
class PeerMemory {
 public:
  // Opens this rank's home slots to the peers and learns theirs. Every rank calls it at the same
  // point. FAILED_PRECONDITION naming the rank whose shape or buffers are others.
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Exchange(transport::Transport& transport,
                                                              const ExpertStore& store,
                                                              uint64_t chunk_bytes,
                                                              absl::Time deadline);

  // Starts to bring the buffers of `from` for which `wanted` is true to rank `to`, and appends the
  // operations. destination(buffer) says where each goes; it is asked on rank `to` only. `tag`
  // tells concurrent fetches apart where they travel as messages.
  void Fetch(const HomeSlot& from, int to, transport::Tag tag,
             absl::FunctionRef<bool(const BufferSpec&)> wanted,
             absl::FunctionRef<char*(int buffer)> destination,
             std::vector<transport::Operation>& operations) const;

 private:
  struct Location {
    uint32_t block = 0;
    uint64_t offset = 0;
  };
  struct Peer {
    std::vector<std::unique_ptr<transport::RemoteRegion>> blocks;
    std::vector<Location> locations;  // [L, home slots, buffers]
  };

  PeerMemory(transport::Transport& transport, const ExpertStore& store, uint64_t chunk_bytes)
      : transport_(transport), store_(store), chunk_bytes_(chunk_bytes) {}

  absl::Status OpenOwn(std::string& description);
  absl::Status ImportPeer(int rank, const std::string& description);
  size_t LocationIndex(int layer, int slot, int buffer) const;

  transport::Transport& transport_;
  const ExpertStore& store_;
  const uint64_t chunk_bytes_;
  std::vector<std::unique_ptr<transport::Region>> own_;
  std::vector<Peer> peers_;  // [ranks]
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_PEER_MEMORY_H_

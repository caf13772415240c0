// Brings the experts that a plan puts on this rank for the step: new homes, and bridges.
#ifndef RELIBRA_WORKER_AGENT_HOME_MOVER_H_
#define RELIBRA_WORKER_AGENT_HOME_MOVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_agent/expert_store.h"
#include "worker_agent/peer_memory.h"
#include "worker_agent/placement.h"
#include "worker_agent/plan.h"
#include "worker_agent/transport/transport.h"

namespace relibra::agent {

// One expert on its way to another rank.
struct Transfer {
  HomeSlot from;
  int expert = 0;
  int to_rank = 0;
  int to_slot = 0;      // physical slot
  bool bridge = false;  // weights only
};

// Used by one thread. Outlived by what it is given.
class HomeMover {
 public:
  HomeMover(transport::Transport& transport, ExpertStore& store, const PeerMemory& peers)
      : transport_(transport), store_(store), peers_(peers) {}

  // How many of the transfers arrive at this rank: each takes a piece of spare memory.
  int Incoming(const std::vector<Transfer>& transfers) const;

  // Brings this rank's incoming experts into spare memory and compares their checksums with those
  // of their sources; sends the checksums of the outgoing ones. Every rank calls it with the same
  // transfers, epoch (a number that grows from step to step) and round (one that grows within it).
  // DATA_LOSS when a checksum differs, naming the expert. After any error the spare memory is set
  // aside (a late transfer may still write there), and the home slots are as they were.
  absl::Status Bring(const std::vector<Transfer>& transfers, uint64_t epoch, int round,
                     absl::Time deadline);

  // Copies what Bring brought into the slots. Overwrites old homes: only after the agreement.
  void Install(const std::vector<Transfer>& transfers);

  // Bytes that were brought since Restart.
  uint64_t brought_bytes() const { return brought_bytes_; }
  void Restart() { brought_bytes_ = 0; }

 private:
  absl::Status BringInto(const std::vector<Transfer>& transfers, uint64_t epoch, int round,
                         absl::Time deadline);
  bool Travels(const Transfer& transfer, const BufferSpec& spec) const {
    return transfer.bridge ? spec.role == BufferRole::kWeight : spec.moves();
  }
  // Where a buffer of the i-th incoming expert lies in spare memory.
  char* SpareBuffer(int incoming, int buffer);

  transport::Transport& transport_;
  ExpertStore& store_;
  const PeerMemory& peers_;
  uint64_t brought_bytes_ = 0;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_HOME_MOVER_H_

// A transport among threads of one process, for tests: real blocking, real deadlines, and faults on
// demand.
//
//   auto group = InProcessGroup::Create(8, {.faults = {{.kind = Fault::Kind::kKill, .rank = 3,
//                                                       .operation = Fault::Operation::kGet,
//                                                       .at = 5}}});
//   std::unique_ptr<Transport> rank3 = group->Attach(3);   // in rank 3's thread
#ifndef RELIBRA_WORKER_AGENT_TRANSPORT_IN_PROCESS_H_
#define RELIBRA_WORKER_AGENT_TRANSPORT_IN_PROCESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker_agent/transport/transport.h"

namespace relibra::transport {

// Something that goes wrong at the `at`-th operation (from 0) of its kind that a rank starts.
struct Fault {
  enum class Kind {
    kDrop,     // a message is lost; a get never completes
    kDelay,    // it happens `delay` later, and so do messages of the same source and tag behind it
    kCorrupt,  // one bit of its data is flipped
    kKill,     // the rank dies before the operation: see InProcessGroup::Kill
  };
  enum class Operation { kAny, kGet, kSend };

  Kind kind = Kind::kDrop;
  int rank = 0;
  Operation operation = Operation::kAny;
  int64_t at = 0;
  absl::Duration delay = absl::ZeroDuration();
};

struct InProcessOptions {
  std::vector<Fault> faults = {};
  // False: only messages, as with NCCL.
  bool one_sided_get = true;
  // False: peers learn of a death only by their deadlines.
  bool detects_peer_death = true;
};

// The ranks' common state. Thread-safe; outlives nothing: the attached transports share it.
class InProcessGroup {
 public:
  static std::shared_ptr<InProcessGroup> Create(int size, InProcessOptions options = {});
  virtual ~InProcessGroup() = default;

  // The transport of one rank; each rank once.
  virtual std::unique_ptr<Transport> Attach(int rank) = 0;
  // From now on every operation of the rank fails with UNAVAILABLE, those in flight included; its
  // memory can no longer be read. Peers' operations with it fail too, or never complete (see
  // detects_peer_death).
  virtual void Kill(int rank) = 0;
  // Faults that have happened so far.
  virtual int64_t faults_injected() const = 0;
};

}  // namespace relibra::transport

#endif  // RELIBRA_WORKER_AGENT_TRANSPORT_IN_PROCESS_H_

// Collectives made of a transport's messages, for back-ends without their own and for data of any
// length. Each uses Bruck's algorithm: ceil(log2 P) rounds.
#ifndef RELIBRA_WORKER_AGENT_TRANSPORT_COLLECTIVES_H_
#define RELIBRA_WORKER_AGENT_TRANSPORT_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_agent/transport/transport.h"

namespace relibra::transport {

// The agent's channels (see Tag).
inline constexpr uint8_t kCollectiveChannel = 0;
inline constexpr uint8_t kBytesChannel = 1;

// Transport::AllGather over messages. `sequence` numbers the calls of this transport, the same on
// every rank, so that what a failed call left behind is never taken for a later one's.
absl::StatusOr<std::vector<uint64_t>> GatherWords(Transport& transport, uint64_t sequence,
                                                  absl::Span<const uint64_t> words,
                                                  absl::Time deadline);

// Every rank's bytes, of any length each, in order of ranks. Called in the same order on every
// rank, like AllGather.
absl::StatusOr<std::vector<std::string>> AllGatherBytes(Transport& transport,
                                                        const std::string& bytes,
                                                        absl::Time deadline);

}  // namespace relibra::transport

#endif  // RELIBRA_WORKER_AGENT_TRANSPORT_COLLECTIVES_H_

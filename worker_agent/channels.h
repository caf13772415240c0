// The agent's message channels (see transport::Tag), beside those of transport/collectives.h.
#ifndef RELIBRA_WORKER_AGENT_CHANNELS_H_
#define RELIBRA_WORKER_AGENT_CHANNELS_H_

#include <cstdint>

#include "worker_agent/transport/transport.h"

namespace relibra::agent {

inline constexpr uint8_t kMoveChannel = 2;
inline constexpr uint8_t kChecksumChannel = 3;
inline constexpr uint8_t kReplicaChannel = 4;
inline constexpr uint8_t kGradientChannel = 5;
inline constexpr uint8_t kBridgeGradientChannel = 6;

// The tag of what belongs to one (step, micro-batch, layer). Several messages of one tag between
// two ranks are told apart by their order. Steps wrap after 4,096, which no message outlives.
inline transport::Tag StepTag(uint8_t channel, uint64_t epoch, int micro_batch, int layer) {
  return {channel, ((epoch & 0xfff) << 28) | (uint64_t(micro_batch & 0x3fff) << 14) |
                       uint64_t(layer & 0x3fff)};
}

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_CHANNELS_H_

// The largest routing that the kernels take.
#ifndef RELIBRA_KERNELS_ROUTING_LIMITS_H_
#define RELIBRA_KERNELS_ROUTING_LIMITS_H_

#include <cstdint>

namespace relibra {

inline constexpr int64_t kMaxExperts = 8192;             // a layer
inline constexpr int64_t kMaxTopK = 64;                  // choices of a token in a layer
inline constexpr int64_t kMaxHidden = int64_t{1} << 24;  // elements of a hidden state
inline constexpr int64_t kMaxChoices = 0x7fffffff;  // tokens x top_k: they are numbered by int32

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ROUTING_LIMITS_H_

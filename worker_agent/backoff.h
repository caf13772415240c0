// How long to wait before the next attempt: doubling, with jitter, so that a thousand agents do not
// come back in step.
#ifndef RELIBRA_WORKER_AGENT_BACKOFF_H_
#define RELIBRA_WORKER_AGENT_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace relibra::agent {

class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration longest, uint64_t seed)
      : first_(first), longest_(longest), next_(first), random_(seed) {}

  // Between half of the current wait and all of it; the next one is twice as long.
  absl::Duration Next() {
    const absl::Duration wait = next_ * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    next_ = std::min(next_ * 2, longest_);
    return wait;
  }
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  absl::Duration next_;
  std::mt19937_64 random_;
};

}  // namespace relibra::agent

#endif  // RELIBRA_WORKER_AGENT_BACKOFF_H_

// The digest of a plan.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_DIGEST_H_
#define RELIBRA_PLANNER_SERVICE_CORE_DIGEST_H_

#include <string>

#include "planner_service/core/plan.h"

namespace relibra {

// 32 hex digits over topology, homes, moves and replicas with their tokens: equal plans have equal
// digests on every machine, plans that differ in one number do not (128 bits, not cryptographic:
// two lanes of FNV-1a over 64-bit words, each finished by SplitMix64).
std::string DigestOf(const Plan& plan);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_DIGEST_H_

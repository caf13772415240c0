// Maps the logical expert of every (token, choice) of one layer, micro-batch and source rank to the
// instance (home or replica) that shall serve it.
//
// The rule. Take the choices of one expert in flattened order (token by token, choice by choice)
// and number them k = 0..n-1. Lay the quotas of its instances end to end, home first: instance i
// owns the interval [q_0 + … + q_(i-1), q_0 + … + q_i) of 0..Q-1, with Q their sum. Choice k goes
// to the instance whose interval holds floor(k * Q / n).
// - n == Q, the planned number: every instance gets exactly its quota.
// - n != Q, replay that differs from the plan: an instance with interval [a, b) gets
//   ceil(b n / Q) - ceil(a n / Q) of them, its share of n to within one token; none is dropped. An
//   instance of quota 0 gets nothing.
// - Q == 0, nothing was planned: all go to the home.
// - an id below 0 is not routed: slot and rank are -1.
//
// Why not `position % number of instances`, which is what inference engines do: (1) it can only
// split evenly, and the plan's quotas are not even; (2) it aliases: position is token * top_k +
// choice, so with an even top_k and two instances an expert that always stands in an odd column
// always takes the same one; (3) what an instance gets depends on the tokens of *other* experts in
// between. Counting the expert's own occurrences has none of the three.
//
// Neighbouring choices of an expert go to the same instance. That is deliberate: one exchange
// carries all the tokens of a micro-batch, so only the sums matter, and long runs keep the copies
// at both ends of the exchange sequential.
#ifndef RELIBRA_KERNELS_INSTANCE_MAP_H_
#define RELIBRA_KERNELS_INSTANCE_MAP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/executor.h"
#include "kernels/id_report.h"
#include "kernels/routing_limits.h"

namespace relibra {

// The instances of every expert of one (layer, micro-batch), with the quotas of one source rank, as
// compressed rows: expert e's are offsets[e] .. offsets[e + 1] - 1, its home first, then its
// replicas in any fixed order.
struct InstanceTable {
  int64_t experts = 0;               // E, 1..kMaxExperts
  const int32_t* offsets = nullptr;  // [E + 1], from 0, at least one instance an expert
  const int32_t* rank = nullptr;     // [offsets[E]], destination rank
  const int32_t* slot = nullptr;     // [offsets[E]], physical slot there; the caller's numbering,
                                     // handed through as it is
  const uint32_t* quota = nullptr;   // [offsets[E]], (token, choice) pairs of this source rank; an
                                     // expert without replicas may say 0 for its home
};

// Checks a table in host memory: offsets start at 0 and leave every expert at least one instance,
// ranks and slots are not negative, the quotas of an expert sum to less than 2^32. Else
// INVALID_ARGUMENT naming the expert and the instance. MapToInstances runs it on the CPU; before a
// table is copied to a device, the caller does: a kernel trusts it. O(instances).
absl::Status CheckInstanceTable(const InstanceTable& table);

// Ids of one layer: id of (t, c) is data[t * token_stride + c], so a layer of a [tokens, layers,
// top_k] array is read in place: data at the layer, token_stride = layers * top_k.
struct LayerIds {
  const void* data = nullptr;  // aligned to the type's size
  IdType type = IdType::kI32;
  int64_t tokens = 0;
  int64_t top_k = 1;
  int64_t token_stride = 0;  // in elements; 0 means top_k
};

// Scratch that MapToInstances needs for this many choices (tokens x top_k) and experts.
// UNAVAILABLE without a GPU when device is kCuda.
absl::StatusOr<size_t> MapToInstancesWorkspaceBytes(Device device, int64_t choices,
                                                    int64_t experts);

// slot, rank: [tokens, top_k], overwritten; -1 where the id is below 0, or >= E, which is also
// reported in *report (first_position counts in [tokens, top_k]).
// table: pointers the executor can reach.
// INVALID_ARGUMENT: null pointers, top_k outside 1..kMaxTopK, tokens x top_k >= 2^31, a stride
// below top_k, a workspace too small. On the CPU also a bad table, and report->invalid not 0
// (outputs are complete all the same). CPU: O(choices x instances of an expert). CUDA: a stable
// radix sort of the choices by expert, then one thread a choice.
absl::Status MapToInstances(const Executor& executor, const LayerIds& ids,
                            const InstanceTable& table, int32_t* slot, int32_t* rank,
                            IdReport* report, Workspace workspace);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_INSTANCE_MAP_H_

// Adds the gradients of an expert's replicas to its home's.
#ifndef RELIBRA_KERNELS_ACCUMULATE_H_
#define RELIBRA_KERNELS_ACCUMULATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/executor.h"

namespace relibra {

// home[i] = ((home[i] + replicas[0][i]) + replicas[1][i]) + …, in fp32 and in the order given, so
// that a run gives the same bits as the run before it as long as the caller orders the replicas the
// same way (by rank, say). home is read and written once for up to 16 replicas.
//
// home: fp32 [count]. replicas: pointers (the array itself in host memory) to [count] elements of
// `type`, kBf16 or kFp32; none may overlap home. Addresses aligned to 16 bytes are fast, others
// only correct. INVALID_ARGUMENT: null pointers, count < 0, another type, pointers not aligned to
// their element. CPU and CUDA: (8 + element size x replicas) x count bytes are moved.
absl::Status AccumulateGradients(const Executor& executor, float* home,
                                 absl::Span<const void* const> replicas, FloatType type,
                                 int64_t count);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_ACCUMULATE_H_

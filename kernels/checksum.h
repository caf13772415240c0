// A 64-bit checksum of a buffer: the same number from the CPU and from a GPU, so that a move of an
// expert is verified where the bytes lie, without copying them back.
//
// It is the sum, modulo 2^64, over the buffer's little-endian 8-byte words (the last one padded
// with zeros) of a mix of the word and its index, plus a mix of the length. Sums commute, so blocks
// and threads may add in any order; the index makes swapped words show, the length a truncation to
// a tail of zeros. It guards against accidents (lost, stale or misplaced data: one in 2^64 goes
// unseen), not against an adversary. The value is part of the protocol between agents: it never
// changes.
#ifndef RELIBRA_KERNELS_CHECKSUM_H_
#define RELIBRA_KERNELS_CHECKSUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/executor.h"

namespace relibra {

// *checksum is overwritten. data: any alignment (16 bytes is fast). checksum: 8-byte aligned,
// memory that the executor can reach. INVALID_ARGUMENT: null pointers (data may be null for 0
// bytes), bytes < 0. CPU and CUDA: one read of the buffer.
absl::Status Checksum(const Executor& executor, const void* data, int64_t bytes,
                      uint64_t* checksum);

}  // namespace relibra

#endif  // RELIBRA_KERNELS_CHECKSUM_H_

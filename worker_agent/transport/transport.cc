#include "worker_agent/transport/transport.h"

#include <algorithm>

namespace relibra::transport {
namespace {

uint64_t Combine(uint64_t a, uint64_t b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kSum:
      break;
  }
  return a + b;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> Transport::AllReduce(absl::Span<const uint64_t> words,
                                                           ReduceOp op, absl::Time deadline) {
  absl::StatusOr<std::vector<uint64_t>> all = AllGather(words, deadline);
  if (!all.ok()) return all.status();
  std::vector<uint64_t> result(all->begin(), all->begin() + words.size());
  for (int rank = 1; rank < size(); ++rank) {
    for (size_t i = 0; i < words.size(); ++i) {
      result[i] = Combine(result[i], (*all)[rank * words.size() + i], op);
    }
  }
  return result;
}

absl::Status Transport::Barrier(absl::Time deadline) {
  const uint64_t word = 0;
  return AllGather({&word, 1}, deadline).status();
}

}  // namespace relibra::transport

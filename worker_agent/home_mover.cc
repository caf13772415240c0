#include "worker_agent/home_mover.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/checksum.h"
#include "worker_agent/channels.h"

namespace relibra::agent {
namespace {

using transport::Operation;

// Gets in flight before the oldest are waited for.
constexpr size_t kWindow = 64;

}  // namespace

int HomeMover::Incoming(const std::vector<Transfer>& transfers) const {
  return static_cast<int>(std::count_if(transfers.begin(), transfers.end(), [&](const Transfer& t) {
    return t.to_rank == store_.rank();
  }));
}

char* HomeMover::SpareBuffer(int incoming, int buffer) {
  // Buffers start at multiples of 256 bytes, as ExpertStore::MovingBytes counts them.
  uint64_t offset = 0;
  for (int b = 0; b < buffer; ++b) {
    const BufferSpec& spec = store_.specs()[b];
    if (spec.moves()) offset += (spec.bytes + 255) / 256 * 256;
  }
  return store_.Spare(incoming) + offset;
}

absl::Status HomeMover::Bring(const std::vector<Transfer>& transfers, uint64_t epoch, int round,
                              absl::Time deadline) {
  absl::Status status = BringInto(transfers, epoch, round, deadline);
  if (!status.ok()) store_.AbandonSpare();
  return status;
}

absl::Status HomeMover::BringInto(const std::vector<Transfer>& transfers, uint64_t epoch, int round,
                                  absl::Time deadline) {
  const int rank = store_.rank();
  const int buffers = static_cast<int>(store_.specs().size());
  std::vector<Operation> operations;
  size_t waited = 0;
  // [transfers, buffers]; operations keep it alive, for a late message may still write into it.
  auto checksums = std::make_shared<std::vector<uint64_t>>(transfers.size() * buffers, 0);
  const transport::Tag checksum_tag = StepTag(kChecksumChannel, epoch, round, 0);
  const transport::Tag move_tag = StepTag(kMoveChannel, epoch, round, 0);

  int incoming = 0;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    uint64_t* sums = checksums->data() + i * buffers;
    if (t.from.rank == rank) {
      for (int b = 0; b < buffers; ++b) {
        if (!Travels(t, store_.specs()[b])) continue;
        absl::Status s = Checksum(Executor::Cpu(), store_.Buffer(t.from.layer, t.from.slot, b),
                                  static_cast<int64_t>(store_.specs()[b].bytes), &sums[b]);
        if (!s.ok()) return s;
      }
    }
    // A bridge may stay where its expert's home was: then nothing travels.
    if (t.from.rank == rank && t.to_rank != rank) {
      operations.push_back(transport_.Send(t.to_rank, checksum_tag, sums, buffers * 8));
      operations.back().state()->keep_alive = checksums;
    }
    if (t.to_rank == rank && t.from.rank != rank) {
      operations.push_back(transport_.Receive(t.from.rank, checksum_tag, sums, buffers * 8));
      operations.back().state()->keep_alive = checksums;
    }
    const int mine = incoming;
    if (t.to_rank == rank) ++incoming;
    peers_.Fetch(
        t.from, t.to_rank, move_tag, [&](const BufferSpec& spec) { return Travels(t, spec); },
        [&](int b) { return SpareBuffer(mine, b); }, operations);
    if (operations.size() - waited > 2 * kWindow) {
      absl::Status s =
          transport_.Wait(absl::MakeSpan(operations).subspan(waited, kWindow), deadline);
      if (!s.ok()) return s;
      waited += kWindow;
    }
  }
  if (absl::Status s = transport_.Wait(operations, deadline); !s.ok()) return s;

  incoming = 0;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.to_rank != rank) continue;
    for (int b = 0; b < buffers; ++b) {
      const BufferSpec& spec = store_.specs()[b];
      if (!Travels(t, spec)) continue;
      uint64_t sum = 0;
      absl::Status s = Checksum(Executor::Cpu(), SpareBuffer(incoming, b),
                                static_cast<int64_t>(spec.bytes), &sum);
      if (!s.ok()) return s;
      if (sum != (*checksums)[i * buffers + b]) {
        return absl::DataLossError(absl::StrCat("layer ", store_.shape().layer_ids[t.from.layer],
                                                ", expert ", t.expert, ", buffer '", spec.name,
                                                "': what arrived from rank ", t.from.rank,
                                                " has another checksum than its source"));
      }
      brought_bytes_ += spec.bytes;
    }
    ++incoming;
  }
  return absl::OkStatus();
}

void HomeMover::Install(const std::vector<Transfer>& transfers) {
  int incoming = 0;
  for (const Transfer& t : transfers) {
    if (t.to_rank != store_.rank()) continue;
    for (int b = 0; b < static_cast<int>(store_.specs().size()); ++b) {
      if (!Travels(t, store_.specs()[b])) continue;
      std::memcpy(store_.Buffer(t.from.layer, t.to_slot, b), SpareBuffer(incoming, b),
                  store_.specs()[b].bytes);
    }
    ++incoming;
  }
}

}  // namespace relibra::agent

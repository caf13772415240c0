#include "worker_agent/transport/collectives.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

namespace relibra::transport {
namespace {

// Rounds of one call share the low bits of the tag; 24 rounds would do for 16 M ranks.
uint64_t RoundTag(uint64_t sequence, int round) { return ((sequence << 5) | round) & 0xffffffffff; }

// One round's exchange. The operations own their buffers, so a late peer never writes into freed
// memory after a deadline.
absl::StatusOr<std::shared_ptr<std::vector<uint64_t>>> ExchangeRound(
    Transport& transport, Tag tag, int to, int from,
    const std::shared_ptr<std::vector<uint64_t>>& data, size_t expected_words,
    absl::Time deadline) {
  auto incoming = std::make_shared<std::vector<uint64_t>>(expected_words);
  Operation receive = transport.Receive(from, tag, incoming->data(), expected_words * 8);
  receive.state()->keep_alive = incoming;
  Operation send = transport.Send(to, tag, data->data(), data->size() * 8);
  send.state()->keep_alive = data;
  const Operation both[] = {receive, send};
  if (absl::Status status = transport.Wait(both, deadline); !status.ok()) return status;
  if (receive.bytes() != expected_words * 8) {
    return absl::DataLossError(absl::StrCat("all-gather: rank ", from, " sent ", receive.bytes(),
                                            " bytes, expected ", expected_words * 8));
  }
  return incoming;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> GatherWords(Transport& transport, uint64_t sequence,
                                                  absl::Span<const uint64_t> words,
                                                  absl::Time deadline) {
  const int size = transport.size();
  const int rank = transport.rank();
  // blocks[i] belongs to rank (rank + i) mod size; each round doubles what is held.
  std::vector<uint64_t> blocks(words.begin(), words.end());
  int held = 1;
  for (int round = 0; held < size; ++round) {
    const int count = std::min(held, size - held);
    auto data = std::make_shared<std::vector<uint64_t>>(blocks.begin(),
                                                        blocks.begin() + count * words.size());
    const int to = (rank - held + size) % size;
    const int from = (rank + held) % size;
    auto incoming = ExchangeRound(transport, {kCollectiveChannel, RoundTag(sequence, round)}, to,
                                  from, data, count * words.size(), deadline);
    if (!incoming.ok()) return incoming.status();
    blocks.insert(blocks.end(), (*incoming)->begin(), (*incoming)->end());
    held += count;
  }
  std::vector<uint64_t> in_order(blocks.size());
  for (int i = 0; i < size; ++i) {
    std::copy_n(blocks.begin() + i * words.size(), words.size(),
                in_order.begin() + (rank + i) % size * words.size());
  }
  return in_order;
}

absl::StatusOr<std::vector<std::string>> AllGatherBytes(Transport& transport,
                                                        const std::string& bytes,
                                                        absl::Time deadline) {
  const uint64_t length = bytes.size();
  absl::StatusOr<std::vector<uint64_t>> lengths = transport.AllGather({&length, 1}, deadline);
  if (!lengths.ok()) return lengths.status();

  const int size = transport.size();
  const int rank = transport.rank();
  auto all = std::make_shared<std::vector<std::string>>(size);
  for (int r = 0; r < size; ++r) (*all)[r].resize((*lengths)[r]);
  (*all)[rank] = bytes;
  // Around the ring, one neighbour's distance after the other: few messages are in flight at once.
  for (int distance = 1; distance < size; ++distance) {
    const int to = (rank + distance) % size;
    const int from = (rank - distance + size) % size;
    const Tag tag{kBytesChannel, static_cast<uint64_t>(distance)};
    std::string& incoming = (*all)[from];
    Operation receive = transport.Receive(from, tag, incoming.data(), incoming.size());
    receive.state()->keep_alive = all;
    Operation send = transport.Send(to, tag, (*all)[rank].data(), bytes.size());
    send.state()->keep_alive = all;
    const Operation both[] = {receive, send};
    if (absl::Status status = transport.Wait(both, deadline); !status.ok()) return status;
    if (receive.bytes() != incoming.size()) {
      return absl::DataLossError(absl::StrCat("all-gather: rank ", from, " sent ", receive.bytes(),
                                              " bytes, announced ", incoming.size()));
    }
  }
  return std::move(*all);
}

}  // namespace relibra::transport

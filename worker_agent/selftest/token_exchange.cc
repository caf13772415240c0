#include "worker_agent/selftest/token_exchange.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace relibra::agent::selftest {
namespace {

using transport::Operation;
using transport::Tag;

constexpr uint8_t kCountChannel = 32;
constexpr uint8_t kRowChannel = 33;

// One message to and from every rank; begins are in elements. The operations share the buffers, for
// a late message may still arrive after a deadline.
template <typename T>
absl::StatusOr<std::vector<T>> AllToAll(transport::Transport& transport, Tag tag,
                                        std::vector<T> outgoing,
                                        const std::vector<int64_t>& send_begin,
                                        const std::vector<int64_t>& recv_begin,
                                        absl::Time deadline) {
  const auto out = std::make_shared<std::vector<T>>(std::move(outgoing));
  const auto in = std::make_shared<std::vector<T>>(recv_begin.back());
  std::vector<Operation> operations;
  for (int r = 0; r < transport.size(); ++r) {
    operations.push_back(transport.Receive(r, tag, in->data() + recv_begin[r],
                                           (recv_begin[r + 1] - recv_begin[r]) * sizeof(T)));
    operations.back().state()->keep_alive = in;
  }
  for (int i = 0; i < transport.size(); ++i) {
    const int r = (transport.rank() + i) % transport.size();
    operations.push_back(transport.Send(r, tag, out->data() + send_begin[r],
                                        (send_begin[r + 1] - send_begin[r]) * sizeof(T)));
    operations.back().state()->keep_alive = out;
  }
  if (absl::Status s = transport.Wait(operations, deadline); !s.ok()) return s;
  for (int r = 0; r < transport.size(); ++r) {
    const size_t expected = (recv_begin[r + 1] - recv_begin[r]) * sizeof(T);
    if (operations[r].bytes() != expected) {
      return absl::DataLossError(absl::StrCat("rank ", r, " sent ", operations[r].bytes(),
                                              " bytes of tokens, announced ", expected));
    }
  }
  return std::move(*in);
}

std::vector<int64_t> Scaled(std::vector<int64_t> begins, int64_t by) {
  for (int64_t& begin : begins) begin *= by;
  return begins;
}

}  // namespace

absl::StatusOr<TokenExchange> TokenExchange::Create(transport::Transport& transport,
                                                    const GroupShape& shape, const DispatchMap& map,
                                                    int hidden, uint64_t sequence,
                                                    absl::Time deadline) {
  const int ranks = transport.size();
  const int slots = shape.physical_slots();
  TokenExchange exchange(transport, slots, hidden, sequence);
  std::vector<int64_t> begins(ranks + 1);
  for (int r = 0; r <= ranks; ++r) begins[r] = int64_t{1} * r * slots;
  absl::StatusOr<std::vector<int64_t>> arriving =
      AllToAll(transport, {kCountChannel, sequence}, map.counts, begins, begins, deadline);
  if (!arriving.ok()) return arriving.status();
  exchange.arriving_ = *std::move(arriving);

  exchange.send_begin_.resize(ranks + 1, 0);
  exchange.recv_begin_.resize(ranks + 1, 0);
  exchange.slot_begin_.resize(slots + 1, 0);
  for (int r = 0; r < ranks; ++r) {
    const auto own = map.counts.begin() + begins[r];
    const auto theirs = exchange.arriving_.begin() + begins[r];
    exchange.send_begin_[r + 1] = std::accumulate(own, own + slots, exchange.send_begin_[r]);
    exchange.recv_begin_[r + 1] = std::accumulate(theirs, theirs + slots, exchange.recv_begin_[r]);
    for (int slot = 0; slot < slots; ++slot) exchange.slot_begin_[slot + 1] += theirs[slot];
  }
  for (int slot = 0; slot < slots; ++slot) {
    exchange.slot_begin_[slot + 1] += exchange.slot_begin_[slot];
  }
  return exchange;
}

void TokenExchange::Regroup(const std::vector<float>& from, std::vector<float>& to,
                            bool to_service) const {
  std::vector<int64_t> service(slot_begin_.begin(), slot_begin_.end() - 1);
  int64_t arrival = 0;
  for (size_t i = 0; i < arriving_.size(); ++i) {
    int64_t& served = service[i % slots_];
    const int64_t rows = arriving_[i];
    const int64_t source = to_service ? arrival : served;
    const int64_t target = to_service ? served : arrival;
    std::copy_n(from.begin() + source * hidden_, rows * hidden_, to.begin() + target * hidden_);
    arrival += rows;
    served += rows;
  }
}

absl::StatusOr<std::vector<float>> TokenExchange::Dispatch(const std::vector<float>& rows,
                                                           absl::Time deadline) {
  auto arrived = AllToAll(*transport_, {kRowChannel, (sequence_ << 4) | calls_++}, rows,
                          Scaled(send_begin_, hidden_), Scaled(recv_begin_, hidden_), deadline);
  if (!arrived.ok()) return arrived.status();
  std::vector<float> grouped(arrived->size());
  Regroup(*arrived, grouped, /*to_service=*/true);
  return grouped;
}

absl::StatusOr<std::vector<float>> TokenExchange::Return(const std::vector<float>& served_rows,
                                                         absl::Time deadline) {
  std::vector<float> outgoing(served_rows.size());
  Regroup(served_rows, outgoing, /*to_service=*/false);
  return AllToAll(*transport_, {kRowChannel, (sequence_ << 4) | calls_++}, std::move(outgoing),
                  Scaled(recv_begin_, hidden_), Scaled(send_begin_, hidden_), deadline);
}

}  // namespace relibra::agent::selftest

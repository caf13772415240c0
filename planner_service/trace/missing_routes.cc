#include "planner_service/trace/missing_routes.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace relibra {
namespace {

__extension__ using Int128 = __int128;  // pairs x weight outgrows 64 bits

// Deals out pairs in proportion to weights, place after place.
class Dealer {
 public:
  explicit Dealer(std::vector<uint64_t> weights)
      : weights_(std::move(weights)),
        total_(std::accumulate(weights_.begin(), weights_.end(), uint64_t{0})),
        owed_(weights_.size()),
        share_(weights_.size()),
        order_(weights_.size()) {}

  uint64_t total() const { return total_; }

  // How `pairs` are spread: [E], with exactly that sum. Valid until the next call.
  const std::vector<uint64_t>& Deal(uint64_t pairs) {
    uint64_t left = pairs;
    for (size_t e = 0; e < weights_.size(); ++e) {
      const Int128 exact = Int128{pairs} * weights_[e];
      share_[e] = static_cast<uint64_t>(exact / total_);
      owed_[e] += exact % total_;
      left -= share_[e];
    }
    // Fewer than E are left: one each to those whom rounding owes most.
    std::iota(order_.begin(), order_.end(), 0);
    auto owed_more = [&](size_t a, size_t b) {
      return owed_[a] != owed_[b] ? owed_[a] > owed_[b] : a < b;
    };
    std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(left), order_.end(),
                     owed_more);
    for (size_t i = 0; i < left; ++i) {
      ++share_[order_[i]];
      owed_[order_[i]] -= total_;
    }
    return share_;
  }

 private:
  const std::vector<uint64_t> weights_;
  const uint64_t total_;
  std::vector<Int128> owed_;  // in units of 1 / total_ pairs; sums to 0 between calls
  std::vector<uint64_t> share_;
  std::vector<size_t> order_;
};

Dealer DealerOfLayer(const Loads& loads, int layer) {
  const LoadShape& shape = loads.shape();
  std::vector<uint64_t> weights(shape.experts);
  for (int m = 0; m < shape.micro_batches; ++m) {
    const absl::Span<const uint32_t> matrix = loads.At(m, layer);
    for (size_t i = 0; i < matrix.size(); ++i) weights[i % shape.experts] += matrix[i];
  }
  return Dealer(std::move(weights));
}

}  // namespace

absl::Status SpreadMissingRoutes(absl::Span<const uint32_t> unrouted, int top_k, Loads& loads) {
  const LoadShape shape = loads.shape();
  const size_t places = size_t{1} * shape.micro_batches * shape.layers * shape.sources;
  if (unrouted.size() != places || top_k < 1) {
    return absl::InvalidArgumentError(absl::StrCat("unrouted tokens: expected ", places,
                                                   " numbers and a top_k of at least 1, got ",
                                                   unrouted.size(), " and ", top_k));
  }
  for (int l = 0; l < shape.layers; ++l) {
    Dealer dealer = DealerOfLayer(loads, l);
    if (dealer.total() == 0) continue;
    for (int m = 0; m < shape.micro_batches; ++m) {
      for (int s = 0; s < shape.sources; ++s) {
        const uint64_t tokens = unrouted[(size_t{1} * m * shape.layers + l) * shape.sources + s];
        if (tokens == 0) continue;
        const std::vector<uint64_t>& share = dealer.Deal(tokens * static_cast<uint64_t>(top_k));
        uint32_t* row = loads.Mutable(m, l).data() + size_t{1} * s * shape.experts;
        for (int e = 0; e < shape.experts; ++e) {
          if (share[e] > std::numeric_limits<uint32_t>::max() - row[e]) {
            return absl::InvalidArgumentError(
                absl::StrCat("layer ", l, ", micro-batch ", m, ", rank ", s, ", expert ", e,
                             ": the load with missing routes does not fit into 32 bits"));
          }
          row[e] += static_cast<uint32_t>(share[e]);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace relibra

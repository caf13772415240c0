// Which sequence is in which micro-batch on which rank, and how evenly that spreads tokens.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_COMPOSITION_H_
#define RELIBRA_PLANNER_SERVICE_CORE_COMPOSITION_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace relibra {

// How evenly a composition spreads work that has nothing to do with experts. Smaller is better.
struct PackBalance {
  // Sums over micro-batches of the rank with the most: what a synchronous step waits for.
  uint64_t tokens = 0;
  double attention = 0;  // tokens squared, of each sequence
  // Of the micro-batch with the most, all ranks together.
  uint64_t micro_batch_tokens = 0;
  double micro_batch_attention = 0;

  // No field above `other`'s.
  bool NoWorseThan(const PackBalance& other) const;
};

// Sequences that stay together when they change micro-batch, longest first.
using PackUnit = std::vector<size_t>;

// What the bins of one micro-batch may hold, each.
struct BinCap {
  uint64_t tokens = std::numeric_limits<uint64_t>::max();
  double attention = std::numeric_limits<double>::infinity();
};

// M x P bins, one for each (micro-batch, rank), and the sequences in them. A value.
class Composition {
 public:
  // caps: [M]. tokens: [Q], must outlive it. No sequence is placed yet.
  Composition(int ranks, std::vector<BinCap> caps, absl::Span<const uint32_t> tokens);

  int num_micro_batches() const { return micro_batches_; }
  int num_ranks() const { return ranks_; }
  const std::vector<uint32_t>& micro_batch_of() const { return micro_batch_of_; }
  const std::vector<uint32_t>& rank_of() const { return rank_of_; }
  uint64_t micro_batch_tokens(int m) const { return micro_batch_tokens_[m]; }

  // Puts a sequence that is in no bin into one, whatever its cap.
  void Place(size_t q, uint32_t micro_batch, uint32_t rank);
  void Remove(size_t q);

  // The rank of micro-batch m with the fewest tokens, if sequence q fits there.
  std::optional<uint32_t> LightestRank(size_t q, int m) const;
  // The fullest bin of all in which q fits, as (micro-batch, rank).
  std::optional<std::pair<uint32_t, uint32_t>> FullestBin(size_t q) const;

  // No bin holds more than its cap.
  bool KeepsCaps() const;
  // For each micro-batch the most that any bin of it holds.
  std::vector<BinCap> Fullest() const;

  // Exchanges the places of two units of different micro-batches: member i of one takes the place
  // of member i of the other (the shorter unit's places are taken in turn).
  void Swap(const PackUnit& a, const PackUnit& b);
  // Whether after such a swap no bin touched is above its cap and neither micro-batch above the
  // limits of `most` (its micro_batch_ fields).
  bool MaySwap(const PackUnit& a, const PackUnit& b, const PackBalance& most);

  // Deals each micro-batch's sequences to its ranks anew, where that is more even.
  void DealRanks();

  PackBalance Balance() const;

 private:
  size_t BinOf(size_t q) const { return size_t{1} * micro_batch_of_[q] * ranks_ + rank_of_[q]; }
  const BinCap& CapOf(size_t bin) const { return caps_[bin / ranks_]; }
  // Whether a bin may hold so much.
  bool Allows(size_t bin, uint64_t tokens, double attention) const {
    return tokens <= CapOf(bin).tokens && attention <= CapOf(bin).attention;
  }
  bool AllowsMore(size_t bin, uint32_t tokens) const;

  int micro_batches_;
  int ranks_;
  std::vector<BinCap> caps_;  // [M]
  absl::Span<const uint32_t> tokens_;
  std::vector<uint32_t> micro_batch_of_;      // [Q]
  std::vector<uint32_t> rank_of_;             // [Q]
  std::vector<uint64_t> bin_tokens_;          // [M][P]
  std::vector<double> bin_attention_;         // [M][P]
  std::vector<uint64_t> micro_batch_tokens_;  // [M]
  std::vector<double> attention_;             // [M]
};

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_CORE_COMPOSITION_H_

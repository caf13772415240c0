#include "planner_service/core/composition.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

namespace relibra {
namespace {

double Square(uint32_t tokens) { return static_cast<double>(tokens) * tokens; }

// What one micro-batch waits for, each part as a multiple of its mean over ranks.
struct RankCost {
  uint64_t tokens = 0;
  double attention = 0;
};

RankCost CostOfRanks(absl::Span<const size_t> members, absl::Span<const uint32_t> ranks,
                     absl::Span<const uint32_t> tokens, int num_ranks) {
  std::vector<uint64_t> rank_tokens(num_ranks);
  std::vector<double> attention(num_ranks);
  for (size_t i = 0; i < members.size(); ++i) {
    rank_tokens[ranks[i]] += tokens[members[i]];
    attention[ranks[i]] += Square(tokens[members[i]]);
  }
  return {*std::max_element(rank_tokens.begin(), rank_tokens.end()),
          *std::max_element(attention.begin(), attention.end())};
}

// Longest first, each to the rank with the least so far of `weight`. members: longest first.
template <typename Weight>
std::vector<uint32_t> DealLongestFirst(absl::Span<const size_t> members,
                                       absl::Span<const uint32_t> tokens, int num_ranks,
                                       Weight weight) {
  using Entry = std::pair<double, uint32_t>;  // (weight so far, rank)
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> lightest;
  for (int rank = 0; rank < num_ranks; ++rank) lightest.emplace(0, rank);
  std::vector<uint32_t> ranks;
  ranks.reserve(members.size());
  for (size_t q : members) {
    const auto [so_far, rank] = lightest.top();
    lightest.pop();
    ranks.push_back(rank);
    lightest.emplace(so_far + weight(tokens[q]), rank);
  }
  return ranks;
}

}  // namespace

bool PackBalance::NoWorseThan(const PackBalance& other) const {
  return tokens <= other.tokens && attention <= other.attention &&
         micro_batch_tokens <= other.micro_batch_tokens &&
         micro_batch_attention <= other.micro_batch_attention;
}

Composition::Composition(int ranks, std::vector<BinCap> caps, absl::Span<const uint32_t> tokens)
    : micro_batches_(static_cast<int>(caps.size())),
      ranks_(ranks),
      caps_(std::move(caps)),
      tokens_(tokens),
      micro_batch_of_(tokens.size()),
      rank_of_(tokens.size()),
      bin_tokens_(size_t{1} * micro_batches_ * ranks),
      bin_attention_(bin_tokens_.size()),
      micro_batch_tokens_(micro_batches_),
      attention_(micro_batches_) {}

void Composition::Place(size_t q, uint32_t micro_batch, uint32_t rank) {
  micro_batch_of_[q] = micro_batch;
  rank_of_[q] = rank;
  bin_tokens_[BinOf(q)] += tokens_[q];
  bin_attention_[BinOf(q)] += Square(tokens_[q]);
  micro_batch_tokens_[micro_batch] += tokens_[q];
  attention_[micro_batch] += Square(tokens_[q]);
}

void Composition::Remove(size_t q) {
  bin_tokens_[BinOf(q)] -= tokens_[q];
  bin_attention_[BinOf(q)] -= Square(tokens_[q]);
  micro_batch_tokens_[micro_batch_of_[q]] -= tokens_[q];
  attention_[micro_batch_of_[q]] -= Square(tokens_[q]);
}

bool Composition::AllowsMore(size_t bin, uint32_t tokens) const {
  return Allows(bin, bin_tokens_[bin] + tokens, bin_attention_[bin] + Square(tokens));
}

std::optional<uint32_t> Composition::LightestRank(size_t q, int m) const {
  const auto begin = bin_tokens_.begin() + static_cast<ptrdiff_t>(m) * ranks_;
  const auto lightest = std::min_element(begin, begin + ranks_);
  if (!AllowsMore(lightest - bin_tokens_.begin(), tokens_[q])) return std::nullopt;
  return static_cast<uint32_t>(lightest - begin);
}

std::optional<std::pair<uint32_t, uint32_t>> Composition::FullestBin(size_t q) const {
  size_t fullest = bin_tokens_.size();
  for (size_t bin = 0; bin < bin_tokens_.size(); ++bin) {
    if (!AllowsMore(bin, tokens_[q])) continue;
    if (fullest == bin_tokens_.size() || bin_tokens_[bin] > bin_tokens_[fullest]) fullest = bin;
  }
  if (fullest == bin_tokens_.size()) return std::nullopt;
  return std::pair(static_cast<uint32_t>(fullest / ranks_),
                   static_cast<uint32_t>(fullest % ranks_));
}

bool Composition::KeepsCaps() const {
  for (size_t bin = 0; bin < bin_tokens_.size(); ++bin) {
    if (!AllowsMore(bin, 0)) return false;
  }
  return true;
}

std::vector<BinCap> Composition::Fullest() const {
  std::vector<BinCap> most(micro_batches_, BinCap{.tokens = 0, .attention = 0});
  for (size_t bin = 0; bin < bin_tokens_.size(); ++bin) {
    BinCap& of_micro_batch = most[bin / ranks_];
    of_micro_batch.tokens = std::max(of_micro_batch.tokens, bin_tokens_[bin]);
    of_micro_batch.attention = std::max(of_micro_batch.attention, bin_attention_[bin]);
  }
  return most;
}

void Composition::Swap(const PackUnit& a, const PackUnit& b) {
  std::vector<std::pair<uint32_t, uint32_t>> of_a;
  std::vector<std::pair<uint32_t, uint32_t>> of_b;
  for (size_t q : a) of_a.emplace_back(micro_batch_of_[q], rank_of_[q]);
  for (size_t q : b) of_b.emplace_back(micro_batch_of_[q], rank_of_[q]);
  for (size_t q : a) Remove(q);
  for (size_t q : b) Remove(q);
  for (size_t i = 0; i < a.size(); ++i) {
    Place(a[i], of_b[i % of_b.size()].first, of_b[i % of_b.size()].second);
  }
  for (size_t i = 0; i < b.size(); ++i) {
    Place(b[i], of_a[i % of_a.size()].first, of_a[i % of_a.size()].second);
  }
}

bool Composition::MaySwap(const PackUnit& a, const PackUnit& b, const PackBalance& most) {
  const uint32_t m_a = micro_batch_of_[a.front()];
  const uint32_t m_b = micro_batch_of_[b.front()];
  uint64_t tokens_a = micro_batch_tokens_[m_a];
  uint64_t tokens_b = micro_batch_tokens_[m_b];
  double attention_a = attention_[m_a];
  double attention_b = attention_[m_b];
  for (size_t q : a) {
    tokens_a -= tokens_[q], tokens_b += tokens_[q];
    attention_a -= Square(tokens_[q]), attention_b += Square(tokens_[q]);
  }
  for (size_t q : b) {
    tokens_a += tokens_[q], tokens_b -= tokens_[q];
    attention_a += Square(tokens_[q]), attention_b -= Square(tokens_[q]);
  }
  if (std::max(tokens_a, tokens_b) > most.micro_batch_tokens ||
      std::max(attention_a, attention_b) > most.micro_batch_attention) {
    return false;
  }
  if (a.size() == 1 && b.size() == 1) {
    const uint32_t of_a = tokens_[a.front()];
    const uint32_t of_b = tokens_[b.front()];
    const size_t bin_a = BinOf(a.front());
    const size_t bin_b = BinOf(b.front());
    return Allows(bin_a, bin_tokens_[bin_a] - of_a + of_b,
                  bin_attention_[bin_a] - Square(of_a) + Square(of_b)) &&
           Allows(bin_b, bin_tokens_[bin_b] - of_b + of_a,
                  bin_attention_[bin_b] - Square(of_b) + Square(of_a));
  }
  if (a.size() != b.size()) return false;  // some places would be taken twice
  // Bins can hold several members: try it and look.
  std::vector<size_t> bins;
  for (size_t q : a) bins.push_back(BinOf(q));
  for (size_t q : b) bins.push_back(BinOf(q));
  Swap(a, b);
  const bool keeps =
      std::all_of(bins.begin(), bins.end(), [&](size_t bin) { return AllowsMore(bin, 0); });
  Swap(a, b);
  return keeps;
}

void Composition::DealRanks() {
  std::vector<std::vector<size_t>> members(micro_batches_);
  for (size_t q = 0; q < tokens_.size(); ++q) members[micro_batch_of_[q]].push_back(q);
  for (int m = 0; m < micro_batches_; ++m) {
    std::vector<size_t>& here = members[m];
    if (here.empty()) continue;
    std::stable_sort(here.begin(), here.end(),
                     [&](size_t a, size_t b) { return tokens_[a] > tokens_[b]; });
    std::vector<std::vector<uint32_t>> choices(1);
    for (size_t q : here) choices[0].push_back(rank_of_[q]);
    choices.push_back(DealLongestFirst(
        here, tokens_, ranks_, [](uint32_t tokens) { return static_cast<double>(tokens); }));
    choices.push_back(DealLongestFirst(here, tokens_, ranks_, Square));
    const double mean_tokens = std::max(1.0, static_cast<double>(micro_batch_tokens_[m]) / ranks_);
    const double mean_attention = std::max(1.0, attention_[m] / ranks_);
    size_t best = 0;
    double least = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      const RankCost cost = CostOfRanks(here, choices[i], tokens_, ranks_);
      const double both =
          static_cast<double>(cost.tokens) / mean_tokens + cost.attention / mean_attention;
      // The ranks as they are keep the caps.
      const bool keeps =
          i == 0 || (cost.tokens <= caps_[m].tokens && cost.attention <= caps_[m].attention);
      if (keeps && (i == 0 || both < least)) best = i, least = both;
    }
    for (size_t q : here) Remove(q);
    for (size_t i = 0; i < here.size(); ++i) Place(here[i], m, choices[best][i]);
  }
}

PackBalance Composition::Balance() const {
  PackBalance balance;
  for (const BinCap& fullest : Fullest()) {
    balance.tokens += fullest.tokens;
    balance.attention += fullest.attention;
  }
  balance.micro_batch_tokens =
      *std::max_element(micro_batch_tokens_.begin(), micro_batch_tokens_.end());
  balance.micro_batch_attention = *std::max_element(attention_.begin(), attention_.end());
  return balance;
}

}  // namespace relibra

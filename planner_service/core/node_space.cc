#include "planner_service/core/node_space.h"

#include <algorithm>
#include <cmath>

#include "planner_service/core/reorder.h"

namespace relibra {

NodeSpace::NodeSpace(absl::Span<const uint32_t> tokens, absl::Span<const uint32_t> counts,
                     const Topology& topology, const Placement& current, ParallelFor parallel_for)
    : tokens_(tokens),
      counts_(counts),
      topology_(topology),
      layers_(current.size()),
      experts_(current.front().size()),
      homes_(current),
      node_of_(current.size(), std::vector<uint32_t>(experts_)),
      parallel_for_(parallel_for) {
  for (size_t l = 0; l < layers_; ++l) KeepNodes(l);
}

void NodeSpace::PlanHomesFor(const Composition& composition) {
  parallel_for_(static_cast<int>(layers_), [&](int l) {
    const std::vector<HomeChoice> choices =
        HomeChoices(topology_, TotalsOf(composition, l), homes_[l], Effort::kFast,
                    /*every_budget=*/false, /*seed=*/0);
    homes_[l] = choices.back().home_rank;
    KeepNodes(l);
  });
}

double NodeSpace::Imbalance(const Composition& composition) const {
  std::vector<double> sums(layers_);
  parallel_for_(static_cast<int>(layers_), [&](int l) {
    const std::vector<uint32_t> totals = TotalsOf(composition, l);
    std::vector<uint64_t> load(topology_.nodes);
    for (int m = 0; m < composition.num_micro_batches(); ++m) {
      std::fill(load.begin(), load.end(), 0);
      uint64_t all = 0;
      for (size_t e = 0; e < experts_; ++e) {
        load[node_of_[l][e]] += totals[m * experts_ + e];
        all += totals[m * experts_ + e];
      }
      const uint64_t most = *std::max_element(load.begin(), load.end());
      sums[l] +=
          all == 0 ? 1.0 : static_cast<double>(most) * topology_.nodes / static_cast<double>(all);
    }
  });
  double sum = 0;
  for (double of_layer : sums) sum += of_layer;
  return sum / static_cast<double>(layers_) / composition.num_micro_batches();
}

std::vector<double> NodeSpace::VectorsOf(const std::vector<PackUnit>& units,
                                         absl::Span<const size_t> chosen) const {
  std::vector<double> vectors(chosen.size() * dims());
  constexpr size_t kBlock = 64;
  const int blocks = static_cast<int>((chosen.size() + kBlock - 1) / kBlock);
  parallel_for_(blocks, [&](int block) {
    const size_t end = std::min(chosen.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i < end; ++i) {
      for (size_t q : units[chosen[i]]) AddSequence(q, &vectors[i * dims()]);
    }
  });
  AddLengths(units, chosen, vectors);
  return vectors;
}

void NodeSpace::KeepNodes(size_t l) {
  for (size_t e = 0; e < experts_; ++e) {
    node_of_[l][e] = static_cast<uint32_t>(topology_.NodeOf(homes_[l][e]));
  }
}

std::vector<uint32_t> NodeSpace::TotalsOf(const Composition& composition, int l) const {
  std::vector<uint32_t> totals(composition.num_micro_batches() * experts_);
  for (size_t q = 0; q < tokens_.size(); ++q) {
    const uint32_t* row = &counts_[(q * layers_ + l) * experts_];
    uint32_t* total = &totals[composition.micro_batch_of()[q] * experts_];
    for (size_t e = 0; e < experts_; ++e) total[e] += row[e];
  }
  return totals;
}

void NodeSpace::AddSequence(size_t q, double* vector) const {
  const int nodes = topology_.nodes;
  std::vector<int64_t> load(nodes);
  for (size_t l = 0; l < layers_; ++l) {
    const uint32_t* row = &counts_[(q * layers_ + l) * experts_];
    std::fill(load.begin(), load.end(), 0);
    int64_t all = 0;
    for (size_t e = 0; e < experts_; ++e) {
      load[node_of_[l][e]] += row[e];
      all += row[e];
    }
    for (int n = 0; n < nodes; ++n) {
      vector[l * nodes + n] += static_cast<double>(load[n] * nodes - all) / nodes;
    }
  }
}

void NodeSpace::AddLengths(const std::vector<PackUnit>& units, absl::Span<const size_t> chosen,
                           std::vector<double>& vectors) const {
  // Pairs a token and layer, from a sample: all sequences have the same but for missing routes.
  constexpr size_t kSample = 64;
  double sample_pairs = 0;
  double sample_tokens = 0;
  double tokens = 0;
  double attention = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    for (size_t q : units[chosen[i]]) {
      tokens += tokens_[q];
      attention += static_cast<double>(tokens_[q]) * tokens_[q];
      if (i >= kSample) continue;
      for (uint32_t count : counts_.subspan(q * layers_ * experts_, layers_ * experts_)) {
        sample_pairs += count;
      }
      sample_tokens += tokens_[q];
    }
  }
  if (sample_tokens == 0) return;
  const double pairs_of_node =
      sample_pairs / sample_tokens / static_cast<double>(layers_) / topology_.nodes;
  // Found by trial: lengths come out even, and node loads hardly pay for it.
  const double token_weight = 0.3 * pairs_of_node * std::sqrt(static_cast<double>(layers_));
  const double attention_weight =
      0.1 * pairs_of_node * std::sqrt(static_cast<double>(layers_)) * tokens / attention;
  const double units_count = static_cast<double>(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    double own = 0;
    double own_attention = 0;
    for (size_t q : units[chosen[i]]) {
      own += tokens_[q];
      own_attention += static_cast<double>(tokens_[q]) * tokens_[q];
    }
    double* last = &vectors[(i + 1) * dims() - 2];
    last[0] = (own - tokens / units_count) * token_weight;
    last[1] = (own_attention - attention / units_count) * attention_weight;
  }
}

}  // namespace relibra

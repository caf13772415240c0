// Compiled with -ffp-contract=off; see random_stream.cc.
#include "planner_service/trace/generator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/trace/random_stream.h"

namespace relibra {
namespace {

__extension__ using Uint128 = unsigned __int128;

// What a random stream is for; the first of its keys after the seed.
enum Purpose : uint64_t { kPopularity, kTaste, kWhim, kDomain, kLength, kOrder };

absl::Status CheckRange(absl::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", least, " to ", most, ", got ", value));
}

absl::Status CheckOptions(const GeneratorOptions& o) {
  struct Range {
    const char* name;
    double value, least, most;
  };
  for (const Range& range :
       {Range{"ranks", 1.0 * o.num_ranks, 1, 65535},
        Range{"micro_batches", 1.0 * o.micro_batches, 1, 65535},
        Range{"layers", 1.0 * o.layers, 1, 65535}, Range{"experts", 1.0 * o.experts, 1, 65535},
        Range{"top_k", 1.0 * o.top_k, 1, std::min(128.0, 1.0 * o.experts)},
        Range{"layer sigma", o.layer_sigma, 0, 5}, Range{"domain sigma", o.domain_sigma, 0, 5},
        Range{"sequence sigma", o.sequence_sigma, 0, 5},
        Range{"domains", 1.0 * o.domains, 1, 65535},
        Range{"sequences_per_bin", 1.0 * o.sequences_per_bin, 1, 65535},
        Range{"group_size", 1.0 * o.group_size, 1, 65535},
        Range{"tokens_per_bin", 1.0 * o.tokens_per_bin, 1.0 * o.sequences_per_bin, 1 << 24},
        Range{"length_sigma", o.length_sigma, 0, 5},
        Range{"max_tokens", 1.0 * o.max_tokens, 1, 1 << 24}}) {
    absl::Status status = CheckRange(range.name, range.value, range.least, range.most);
    if (!status.ok()) return status;
  }
  const double sequences = 1.0 * o.num_ranks * o.micro_batches * o.sequences_per_bin;
  constexpr double kMostBytes = 64.0 * (int64_t{1} << 30);
  if (sequences * o.layers * o.experts * sizeof(uint32_t) > kMostBytes) {
    return absl::ResourceExhaustedError("the counts of such a batch take more than 64 GiB");
  }
  return absl::OkStatus();
}

// Lognormal numbers of one stream.
std::vector<double> Lognormals(int count, double sigma, std::initializer_list<uint64_t> keys) {
  RandomStream random(keys);
  std::vector<double> numbers(count);
  for (double& number : numbers) number = ExactExp(sigma * random.Normal());
  return numbers;
}

size_t SequencesOf(const GeneratorOptions& o) {
  return size_t{1} * o.num_ranks * o.micro_batches * o.sequences_per_bin;
}

// The number, over the whole job, of the batch's first sequence; prompts are numbered likewise.
uint64_t FirstSequence(const GeneratorOptions& o) { return o.batch * SequencesOf(o); }

uint64_t FirstGroup(const GeneratorOptions& o) {
  return o.batch * ((SequencesOf(o) + o.group_size - 1) / o.group_size);
}

// The histograms of one layer, sequence after sequence.
class LayerGenerator {
 public:
  LayerGenerator(const GeneratorOptions& options, int layer)
      : options_(options), layer_(static_cast<uint64_t>(layer)), shares_(options.experts) {
    if (options.family != TraceFamily::kRl) return;
    popularity_ =
        Lognormals(options.experts, options.layer_sigma, {options.seed, kPopularity, layer_});
    for (int d = 0; d < options.domains; ++d) {
      tastes_.push_back(Lognormals(options.experts, options.domain_sigma,
                                   {options.seed, kTaste, layer_, static_cast<uint64_t>(d)}));
      for (int e = 0; e < options.experts; ++e) tastes_.back()[e] *= popularity_[e];
    }
  }

  // Adds the counts of sequence q to counts [E].
  void Add(size_t q, int domain, uint32_t tokens, uint32_t* counts) {
    DrawShares(q, domain);
    Cap();
    Round(tokens, counts);
  }

 private:
  void DrawShares(size_t q, int domain) {
    switch (options_.family) {
      case TraceFamily::kRl: {
        RandomStream whims({options_.seed, kWhim, layer_, FirstSequence(options_) + q});
        const std::vector<double>& taste = tastes_[domain];
        for (size_t e = 0; e < shares_.size(); ++e) {
          shares_[e] = taste[e] * ExactExp(options_.sequence_sigma * whims.Normal());
        }
        break;
      }
      case TraceFamily::kUniform:
        std::fill(shares_.begin(), shares_.end(), 1.0);
        break;
      case TraceFamily::kOneHot:
        std::fill(shares_.begin(), shares_.end(), 1.0);
        shares_[layer_ % shares_.size()] = 1e9;  // capped below
        break;
    }
  }

  // Scales the shares to a sum of 1, none above the cap.
  void Cap() {
    // A hair below 1 / top_k, so that rounding cannot carry a count above the tokens.
    const double cap =
        options_.top_k == options_.experts ? 1.0 / options_.top_k : (1 - 1e-9) / options_.top_k;
    double at_cap = 0;
    bool more = true;
    while (more) {
      double sum = 0;
      for (double share : shares_) sum += share == cap ? 0 : share;
      const double scale = sum > 0 ? (1 - at_cap * cap) / sum : 0;
      more = false;
      for (double& share : shares_) {
        if (share == cap) continue;
        share *= scale;
        if (share >= cap) {
          share = cap;
          at_cap += 1;
          more = true;
        }
      }
    }
  }

  void Round(uint32_t tokens, uint32_t* counts) {
    // In integers from here: no count depends on how a sum of doubles is rounded.
    constexpr double kUnits = 0x1p50;
    uint64_t total = 0;
    for (double share : shares_) total += static_cast<uint64_t>(share * kUnits);
    const uint64_t pairs = uint64_t{tokens} * static_cast<uint64_t>(options_.top_k);
    uint64_t cumulative = 0;
    uint64_t before = 0;
    for (size_t e = 0; e < shares_.size(); ++e) {
      cumulative += static_cast<uint64_t>(shares_[e] * kUnits);
      const auto upto = static_cast<uint64_t>((Uint128{pairs} * cumulative + total / 2) / total);
      counts[e] += static_cast<uint32_t>(upto - before);
      before = upto;
    }
  }

  const GeneratorOptions& options_;
  const uint64_t layer_;
  std::vector<double> popularity_;
  std::vector<std::vector<double>> tastes_;  // [domains][E], popularity included
  std::vector<double> shares_;               // [E], of the sequence at hand
};

// Everything of a batch but its counts.
SequenceTrace DrawSequences(const GeneratorOptions& o, std::vector<int>& domains) {
  SequenceTrace trace{.num_experts = o.experts, .top_k = o.top_k};
  for (int l = 0; l < o.layers; ++l) trace.layer_ids.push_back(static_cast<uint32_t>(l));
  const size_t sequences = SequencesOf(o);
  const double mean = 1.0 * o.tokens_per_bin / o.sequences_per_bin;
  for (size_t q = 0; q < sequences; ++q) {
    const size_t bin = q / o.sequences_per_bin;
    const size_t group = q / o.group_size;
    trace.ids.push_back(absl::StrCat("s", q));
    trace.prompt_groups.push_back(static_cast<uint32_t>(group));
    trace.source_ranks.push_back(static_cast<uint32_t>(bin % o.num_ranks));
    trace.micro_batches.push_back(static_cast<uint32_t>(bin / o.num_ranks));
    domains.push_back(
        static_cast<int>(RandomStream({o.seed, kDomain, FirstGroup(o) + group}).Below(o.domains)));
    uint32_t tokens = o.tokens_per_bin / o.sequences_per_bin;
    if (o.length_sigma > 0) {
      // The mean of a lognormal is exp(sigma^2 / 2) times its median.
      const double length =
          mean *
          ExactExp(o.length_sigma * RandomStream({o.seed, kLength, FirstSequence(o) + q}).Normal() -
                   o.length_sigma * o.length_sigma / 2);
      tokens = static_cast<uint32_t>(std::clamp(length, 1.0, 1.0 * o.max_tokens));
    }
    trace.tokens.push_back(tokens);
  }
  return trace;
}

}  // namespace

absl::StatusOr<SequenceTrace> GenerateSequences(const GeneratorOptions& options,
                                                ParallelFor parallel_for) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  std::vector<int> domains;
  SequenceTrace trace = DrawSequences(options, domains);
  trace.counts.resize(trace.num_sequences() * options.layers * options.experts);
  parallel_for(options.layers, [&](int l) {
    LayerGenerator layer(options, l);
    for (size_t q = 0; q < trace.num_sequences(); ++q) {
      layer.Add(q, domains[q], trace.tokens[q],
                &trace.counts[(q * options.layers + l) * options.experts]);
    }
  });
  return trace;
}

absl::StatusOr<CountTrace> GenerateCounts(const GeneratorOptions& options,
                                          ParallelFor parallel_for) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  std::vector<int> domains;
  const SequenceTrace sequences = DrawSequences(options, domains);
  absl::StatusOr<Loads> loads = Loads::Create({.micro_batches = options.micro_batches,
                                               .layers = options.layers,
                                               .sources = options.num_ranks,
                                               .experts = options.experts});
  if (!loads.ok()) return loads.status();
  parallel_for(options.layers, [&](int l) {
    LayerGenerator layer(options, l);
    for (size_t q = 0; q < sequences.num_sequences(); ++q) {
      uint32_t* matrix = loads->Mutable(static_cast<int>(sequences.micro_batches[q]), l).data();
      layer.Add(q, domains[q], sequences.tokens[q],
                matrix + size_t{1} * sequences.source_ranks[q] * options.experts);
    }
  });
  if (absl::Status status = loads->CheckSums(); !status.ok()) return status;
  return CountTrace{
      .loads = *std::move(loads), .layer_ids = sequences.layer_ids, .top_k = options.top_k};
}

absl::StatusOr<std::vector<uint16_t>> DrawRoutedIds(const SequenceTrace& trace, size_t q,
                                                    uint64_t seed) {
  const size_t num_layers = trace.num_layers();
  const size_t tokens = trace.tokens[q];
  const auto top_k = static_cast<size_t>(trace.top_k);
  std::vector<uint16_t> ids(tokens * num_layers * top_k);
  std::vector<size_t> row(tokens);
  for (size_t l = 0; l < num_layers; ++l) {
    const absl::Span<const uint32_t> counts =
        trace.HistogramOf(q).subspan(l * trace.num_experts, trace.num_experts);
    uint64_t sum = 0;
    for (uint32_t count : counts) sum += count;
    if (top_k == 0 || sum != tokens * top_k ||
        *std::max_element(counts.begin(), counts.end()) > tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence \"", trace.ids[q], "\", layer ", trace.layer_ids[l],
                       ": no ids have these counts: expected a sum of ", tokens, " tokens x ",
                       top_k, " and none above the tokens, got a sum of ", sum));
    }
    for (size_t t = 0; t < tokens; ++t) row[t] = t;
    RandomStream random({seed, kOrder, q, l});
    for (size_t t = tokens; t > 1; --t) std::swap(row[t - 1], row[random.Below(t)]);
    // Dealt round the tokens, an expert of at most `tokens` pairs meets none twice.
    size_t pair = 0;
    for (int e = 0; e < trace.num_experts; ++e) {
      for (uint32_t i = 0; i < counts[e]; ++i, ++pair) {
        ids[(row[pair % tokens] * num_layers + l) * top_k + pair / tokens] =
            static_cast<uint16_t>(e);
      }
    }
  }
  return ids;
}

}  // namespace relibra

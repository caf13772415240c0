// Compiled with -ffp-contract=off: sums of products round the same on every machine.
#include "planner_service/core/pack.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner_service/core/node_space.h"
#include "planner_service/core/swap_search.h"

namespace relibra {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

constexpr size_t kMostUnitsAtOnce = 2048;
constexpr int kPasses = 30;

absl::Status CheckSizes(const PackSequences& s, const Topology& topology, const Placement& current,
                        const PackOptions& options) {
  if (current.empty()) return Invalid("placement: expected at least 1 layer, got 0");
  const size_t num_experts = current.front().size();
  if (absl::Status status = Validate(topology, static_cast<int>(num_experts)); !status.ok()) {
    return status;
  }
  for (size_t l = 0; l < current.size(); ++l) {
    std::vector<size_t> homes(topology.num_ranks());
    for (size_t e = 0; e < current[l].size(); ++e) {
      if (current[l][e] < 0 || current[l][e] >= topology.num_ranks()) {
        return Invalid("placement: layer ", l, ", expert ", e, ": rank ", current[l][e],
                       " is not in 0..", topology.num_ranks() - 1);
      }
      ++homes[current[l][e]];
    }
    if (current[l].size() != num_experts) {
      return Invalid("placement: layer ", l, ": expected ", num_experts, " experts, got ",
                     current[l].size());
    }
    for (size_t rank = 0; rank < homes.size(); ++rank) {
      if (homes[rank] * homes.size() != num_experts) {
        return Invalid("placement: layer ", l, ": expected ", num_experts / homes.size(),
                       " experts on every rank, got ", homes[rank], " on rank ", rank);
      }
    }
  }
  const size_t count = s.tokens.size();
  if (count == 0) return Invalid("sequences: expected at least 1, got 0");
  if (s.ids.size() != count || s.counts.size() != count * current.size() * num_experts ||
      (!s.prompt_groups.empty() && s.prompt_groups.size() != count)) {
    return Invalid("sequences: expected ids, counts [", count, ", ", current.size(), ", ",
                   num_experts, "] and prompt groups of ", count, " sequences, got ", s.ids.size(),
                   ", ", s.counts.size(), " counts and ", s.prompt_groups.size());
  }
  constexpr int kMostMicroBatches = 1'000'000;
  if (options.micro_batches < 1 || options.micro_batches > kMostMicroBatches) {
    return Invalid("micro_batches: expected 1 to ", kMostMicroBatches, ", got ",
                   options.micro_batches);
  }
  if (s.source_ranks.size() != s.micro_batches.size() ||
      (!s.source_ranks.empty() && s.source_ranks.size() != count)) {
    return Invalid("the order given: expected a rank and a micro-batch for each of ", count,
                   " sequences, got ", s.source_ranks.size(), " and ", s.micro_batches.size());
  }
  for (size_t q = 0; q < s.source_ranks.size(); ++q) {
    if (s.source_ranks[q] >= static_cast<uint32_t>(topology.num_ranks()) ||
        s.micro_batches[q] >= static_cast<uint32_t>(options.micro_batches)) {
      return Invalid("the order given: sequence \"", s.ids[q], "\": rank ", s.source_ranks[q],
                     " and micro-batch ", s.micro_batches[q], " are not in 0..",
                     topology.num_ranks() - 1, " and 0..", options.micro_batches - 1);
    }
  }
  return absl::OkStatus();
}

// Sums of any composition fit into 32 bits.
absl::Status CheckSums(const PackSequences& s, size_t num_layers, size_t num_experts,
                       ParallelFor parallel_for) {
  std::vector<int64_t> overflow(num_layers, -1);
  parallel_for(static_cast<int>(num_layers), [&](int l) {
    std::vector<uint64_t> sums(num_experts);
    for (size_t q = 0; q < s.tokens.size(); ++q) {
      const uint32_t* row = &s.counts[(q * num_layers + l) * num_experts];
      for (size_t e = 0; e < num_experts; ++e) sums[e] += row[e];
    }
    for (size_t e = 0; e < num_experts && overflow[l] < 0; ++e) {
      if (sums[e] > std::numeric_limits<uint32_t>::max()) overflow[l] = static_cast<int64_t>(e);
    }
  });
  for (size_t l = 0; l < num_layers; ++l) {
    if (overflow[l] >= 0) {
      return Invalid("layer ", l, ", expert ", overflow[l],
                     ": the load of all sequences does not fit into 32 bits");
    }
  }
  return absl::OkStatus();
}

// Each unit longest sequence first; units in order of their first sequence.
std::vector<PackUnit> UnitsOf(const PackSequences& s, bool keep_prompt_groups) {
  std::vector<PackUnit> units;
  if (!keep_prompt_groups || s.prompt_groups.empty()) {
    for (size_t q = 0; q < s.tokens.size(); ++q) units.push_back({q});
    return units;
  }
  std::map<uint32_t, size_t> unit_of;
  for (size_t q = 0; q < s.tokens.size(); ++q) {
    const auto [entry, added] = unit_of.try_emplace(s.prompt_groups[q], units.size());
    if (added) units.emplace_back();
    units[entry->second].push_back(q);
  }
  for (PackUnit& unit : units) {
    std::stable_sort(unit.begin(), unit.end(),
                     [&](size_t a, size_t b) { return s.tokens[a] > s.tokens[b]; });
  }
  return units;
}

uint64_t TokensOf(const PackUnit& unit, absl::Span<const uint32_t> tokens) {
  uint64_t sum = 0;
  for (size_t q : unit) sum += tokens[q];
  return sum;
}

// Places all members into micro-batch m, each on the lightest rank, or none.
bool PlaceUnit(const PackUnit& unit, int m, Composition& composition) {
  for (size_t i = 0; i < unit.size(); ++i) {
    const std::optional<uint32_t> rank = composition.LightestRank(unit[i], m);
    if (!rank.has_value()) {
      for (size_t k = 0; k < i; ++k) composition.Remove(unit[k]);
      return false;
    }
    composition.Place(unit[i], static_cast<uint32_t>(m), *rank);
  }
  return true;
}

std::vector<size_t> HeaviestFirst(const std::vector<PackUnit>& units,
                                  absl::Span<const uint32_t> tokens) {
  std::vector<size_t> order(units.size());
  std::vector<uint64_t> weight(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    order[u] = u;
    weight[u] = TokensOf(units[u], tokens);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight[a] > weight[b]; });
  return order;
}

// Deals units, heaviest first, each to the micro-batch with the fewest of its prompt group, then
// the fewest tokens. Nothing when one does not fit.
std::optional<Composition> Deal(const PackSequences& s, const std::vector<PackUnit>& units,
                                Composition composition) {
  std::map<uint32_t, std::vector<uint32_t>> of_group;  // [M] units dealt
  std::vector<int> order(composition.num_micro_batches());
  for (size_t u : HeaviestFirst(units, s.tokens)) {
    const size_t first = units[u].front();
    const auto group =
        s.prompt_groups.empty() ? static_cast<uint32_t>(first) : s.prompt_groups[first];
    std::vector<uint32_t>& dealt = of_group[group];
    dealt.resize(composition.num_micro_batches());
    auto before = [&](int a, int b) {
      return std::tuple(dealt[a], composition.micro_batch_tokens(a), a) <
             std::tuple(dealt[b], composition.micro_batch_tokens(b), b);
    };
    for (size_t m = 0; m < order.size(); ++m) order[m] = static_cast<int>(m);
    // Nearly always the first choice fits.
    const int best = *std::min_element(order.begin(), order.end(), before);
    int chosen = PlaceUnit(units[u], best, composition) ? best : -1;
    if (chosen < 0) {
      std::sort(order.begin(), order.end(), before);
      for (int m : order) {
        if (PlaceUnit(units[u], m, composition)) {
          chosen = m;
          break;
        }
      }
    }
    if (chosen < 0) return std::nullopt;
    ++dealt[chosen];
  }
  return composition;
}

// Best fit, longest sequence first: packs bins tightly where dealing evenly leaves no room. The
// first sequence that fits nowhere goes to `misfit`.
std::optional<Composition> PackTightly(const PackSequences& s, const std::vector<PackUnit>& units,
                                       Composition composition, size_t& misfit) {
  for (size_t u : HeaviestFirst(units, s.tokens)) {
    if (units[u].size() == 1) {
      const auto bin = composition.FullestBin(units[u].front());
      if (!bin.has_value()) {
        misfit = units[u].front();
        return std::nullopt;
      }
      composition.Place(units[u].front(), bin->first, bin->second);
      continue;
    }
    int m = 0;
    while (m < composition.num_micro_batches() && !PlaceUnit(units[u], m, composition)) ++m;
    if (m == composition.num_micro_batches()) {
      misfit = units[u].front();
      return std::nullopt;
    }
  }
  return composition;
}

// The order given or, where none is, the sequences as they stand, equally many in each bin; if it
// keeps the rules.
std::optional<Composition> Given(const PackSequences& s, const std::vector<PackUnit>& units,
                                 Composition composition) {
  const size_t count = s.tokens.size();
  const size_t bins = size_t{1} * composition.num_micro_batches() * composition.num_ranks();
  for (size_t q = 0; q < count; ++q) {
    const size_t bin = q * bins / count;
    if (s.source_ranks.empty()) {
      composition.Place(q, static_cast<uint32_t>(bin / composition.num_ranks()),
                        static_cast<uint32_t>(bin % composition.num_ranks()));
    } else {
      composition.Place(q, s.micro_batches[q], s.source_ranks[q]);
    }
  }
  for (const PackUnit& unit : units) {
    for (size_t q : unit) {
      if (composition.micro_batch_of()[q] != composition.micro_batch_of()[unit.front()]) {
        return std::nullopt;
      }
    }
  }
  if (!composition.KeepsCaps()) return std::nullopt;
  return composition;
}

// Which micro-batches are worked on together: few enough that their units are at most
// kMostUnitsAtOnce; neighbours in even rounds, strewn in odd ones, so that all meet in time.
std::vector<std::vector<int>> SetsOfMicroBatches(int micro_batches, size_t units, int round) {
  const size_t wanted = (units + kMostUnitsAtOnce - 1) / kMostUnitsAtOnce;
  const int sets = static_cast<int>(std::min<size_t>(wanted, std::max(1, micro_batches / 2)));
  const int size = (micro_batches + sets - 1) / sets;
  std::vector<std::vector<int>> result(sets);
  for (int m = 0; m < micro_batches; ++m) {
    result[round % 2 == 0 ? m / size : m % sets].push_back(m);
  }
  return result;
}

// One round of swaps among some micro-batches.
void SwapAmong(const std::vector<int>& micro_batches, const std::vector<PackUnit>& units,
               const NodeSpace& space, const PackBalance& most, Composition& composition,
               ParallelFor parallel_for) {
  std::vector<uint32_t> set_of_micro_batch(composition.num_micro_batches(), ~uint32_t{0});
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    set_of_micro_batch[micro_batches[i]] = static_cast<uint32_t>(i);
  }
  std::vector<size_t> chosen;
  std::vector<uint32_t> set_of;
  for (size_t u = 0; u < units.size(); ++u) {
    const uint32_t set = set_of_micro_batch[composition.micro_batch_of()[units[u].front()]];
    if (set == ~uint32_t{0}) continue;
    chosen.push_back(u);
    set_of.push_back(set);
  }
  SwapSearch search(space.VectorsOf(units, chosen), chosen.size(), parallel_for);
  search.Run(
      static_cast<int>(micro_batches.size()), kPasses, absl::MakeSpan(set_of),
      [&](size_t q, size_t r) {
        return composition.MaySwap(units[chosen[q]], units[chosen[r]], most);
      },
      [&](size_t q, size_t r) { composition.Swap(units[chosen[q]], units[chosen[r]]); });
}

std::vector<BinCap> CapsOf(const PackOptions& options) {
  BinCap cap;
  if (options.max_tokens > 0) cap.tokens = options.max_tokens;
  return std::vector<BinCap>(options.micro_batches, cap);
}

// No sequence may be longer than the cap, and all that is left must fit somewhere.
absl::StatusOr<Composition> Start(const PackSequences& s, const std::vector<PackUnit>& units,
                                  const Topology& topology, const PackOptions& options,
                                  const std::optional<Composition>& given) {
  for (size_t q = 0; q < s.tokens.size(); ++q) {
    if (options.max_tokens > 0 && s.tokens[q] > options.max_tokens) {
      return absl::FailedPreconditionError(absl::StrCat(
          "sequence \"", s.ids[q], "\" of ", s.tokens[q],
          " tokens cannot fit: a rank may have at most ", options.max_tokens, " in a micro-batch"));
    }
  }
  const std::vector<BinCap> caps = CapsOf(options);
  // No bin of a micro-batch above the fullest of the order given: so the result cannot be worse.
  const Composition empty(topology.num_ranks(), given.has_value() ? given->Fullest() : caps,
                          s.tokens);
  std::optional<Composition> start = Deal(s, units, empty);
  if (start.has_value() && given.has_value() && !start->Balance().NoWorseThan(given->Balance())) {
    start.reset();
  }
  if (!start.has_value() && given.has_value()) {
    start = empty;
    for (size_t q = 0; q < s.tokens.size(); ++q) {
      start->Place(q, given->micro_batch_of()[q], given->rank_of()[q]);
    }
  }
  size_t misfit = 0;
  if (!start.has_value()) start = PackTightly(s, units, empty, misfit);
  if (!start.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence \"", s.ids[misfit], "\" of ", s.tokens[misfit], " tokens cannot fit",
                     units.size() < s.tokens.size() ? " with its prompt group" : "",
                     ": no way was found to put ", s.tokens.size(), " sequences into ",
                     options.micro_batches, " micro-batches of ", topology.num_ranks(),
                     " ranks with at most ", options.max_tokens, " tokens each"));
  }
  return *std::move(start);
}

}  // namespace

absl::StatusOr<Packing> PackStep(const PackSequences& sequences, const Topology& topology,
                                 const Placement& current, const PackOptions& options,
                                 ParallelFor parallel_for) {
  absl::Status status = CheckSizes(sequences, topology, current, options);
  if (!status.ok()) return status;
  status = CheckSums(sequences, current.size(), current.front().size(), parallel_for);
  if (!status.ok()) return status;
  const std::vector<PackUnit> units = UnitsOf(sequences, options.keep_prompt_groups);
  const std::optional<Composition> given =
      Given(sequences, units, Composition(topology.num_ranks(), CapsOf(options), sequences.tokens));
  absl::StatusOr<Composition> start = Start(sequences, units, topology, options, given);
  if (!start.ok()) return start.status();

  Packing packing;
  Placement homes_before;
  if (given.has_value()) {
    NodeSpace space(sequences.tokens, sequences.counts, topology, current, parallel_for);
    space.PlanHomesFor(*given);
    packing.node_imbalance_before = space.Imbalance(*given);
    homes_before = space.homes();
  }
  // With an order given, no micro-batch grows above its longest; else 2 % above the longest dealt.
  PackBalance most = given.has_value() ? given->Balance() : start->Balance();
  if (!given.has_value()) {
    most.micro_batch_tokens += most.micro_batch_tokens / 50;
    most.micro_batch_attention *= 1.02;
  }
  Composition composition = *std::move(start);
  NodeSpace space(sequences.tokens, sequences.counts, topology, current, parallel_for);
  space.PlanHomesFor(composition);
  for (int round = 0; round < options.rounds && topology.nodes > 1; ++round) {
    for (const std::vector<int>& set :
         SetsOfMicroBatches(options.micro_batches, units.size(), round)) {
      SwapAmong(set, units, space, most, composition, parallel_for);
    }
    space.PlanHomesFor(composition);
  }
  composition.DealRanks();
  packing.node_imbalance = space.Imbalance(composition);
  packing.homes = space.homes();
  packing.balance = composition.Balance();
  const bool worse = given.has_value() && (!packing.balance.NoWorseThan(given->Balance()) ||
                                           packing.node_imbalance > packing.node_imbalance_before);
  if (worse) {
    packing.node_imbalance = packing.node_imbalance_before;
    packing.balance = given->Balance();
    packing.homes = std::move(homes_before);
    composition = *given;
  }
  packing.micro_batches = composition.micro_batch_of();
  packing.source_ranks = composition.rank_of();
  return packing;
}

}  // namespace relibra

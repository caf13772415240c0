#include "planner_service/server/composition.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner_service/server/quoted.h"

namespace relibra::server {
namespace {

constexpr uint32_t kMaxMicroBatches = 1 << 20;
constexpr size_t kIdsShown = 5;

absl::Status CheckMicroBatches(absl::string_view field, uint32_t num_micro_batches) {
  if (num_micro_batches >= 1 && num_micro_batches <= kMaxMicroBatches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected 1 to ", kMaxMicroBatches, ", got ", num_micro_batches));
}

// Where the routes of a composition's sequences fall short, by [micro-batch][layer][source rank].
using MissingTokens = std::vector<uint64_t>;

struct Sums {
  uint64_t expected = 0;  // (token, layer) pairs
  uint64_t missing = 0;
};

absl::Status Overflow(const Job& job, int layer, uint32_t micro_batch, uint32_t rank, int expert) {
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", job.LayerId(layer), ", micro-batch ", micro_batch, ", rank ", rank,
                   ", expert ", expert, ": more (token, choice) pairs than fit into 32 bits"));
}

// loads row [E] += counts; an error on overflow.
absl::Status AddRow(const Job& job, int layer, const v1::SequencePlacement& placement,
                    const uint32_t* counts, uint32_t* row) {
  for (int e = 0; e < job.num_experts(); ++e) {
    if (counts[e] > std::numeric_limits<uint32_t>::max() - row[e]) {
      return Overflow(job, layer, placement.micro_batch(), placement.source_rank(), e);
    }
    row[e] += counts[e];
  }
  return absl::OkStatus();
}

// slime pads a batch of records with rows whose ids count up through the whole block of padding:
// id = (position in [padding_rows, layer axis, top_k]) % num_experts. The rows repeat after at most
// num_experts of them, so the cost does not grow with their number.
absl::Status AddPadding(const Job& job, int layer, const v1::SequencePlacement& placement,
                        uint32_t* row) {
  const uint64_t experts = job.num_experts();
  const uint64_t row_ids = uint64_t{1} * job.axis_length * job.top_k();
  const uint64_t period = experts / std::gcd(experts, row_ids);
  std::vector<uint32_t> counts(experts);
  for (uint64_t r = 0; r < std::min<uint64_t>(period, placement.padding_rows()); ++r) {
    const auto times = static_cast<uint32_t>((placement.padding_rows() - r + period - 1) / period);
    const uint64_t first = r * row_ids + uint64_t{1} * job.layer_rows[layer] * job.top_k();
    for (int k = 0; k < job.top_k(); ++k) counts[(first + k) % experts] += times;
  }
  return AddRow(job, layer, placement, counts.data(), row);
}

// Deals `pairs` out in proportion to `weights` [E] (evenly when all are zero) onto `row` [E].
absl::Status Spread(uint64_t pairs, absl::Span<const uint64_t> weights, uint32_t* row) {
  const size_t experts = weights.size();
  const uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  std::vector<std::pair<uint64_t, size_t>> remainders(experts);  // (remainder, expert)
  std::vector<uint64_t> shares(experts);
  uint64_t dealt = 0;
  for (size_t e = 0; e < experts; ++e) {
    const unsigned __int128 weight = sum == 0 ? 1 : weights[e];
    const unsigned __int128 whole = weight * pairs;
    const uint64_t divisor = sum == 0 ? experts : sum;
    shares[e] = static_cast<uint64_t>(whole / divisor);
    remainders[e] = {static_cast<uint64_t>(whole % divisor), e};
    dealt += shares[e];
  }
  std::sort(remainders.begin(), remainders.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (size_t i = 0; dealt < pairs; ++i, ++dealt) ++shares[remainders[i].second];
  for (size_t e = 0; e < experts; ++e) {
    if (shares[e] > std::numeric_limits<uint32_t>::max() - row[e]) {
      return absl::InvalidArgumentError("missing tokens overflow 32 bits");
    }
    row[e] += static_cast<uint32_t>(shares[e]);
  }
  return absl::OkStatus();
}

// Adds one sequence's routes, and notes what is missing of them.
absl::Status AddSequence(const Job& job, const EpGroup& group,
                         const v1::SequencePlacement& placement, const SequenceRoutes& routes,
                         Loads& loads, MissingTokens& missing, Sums& sums) {
  const uint64_t expected = routes.expected();
  const uint64_t never_came = expected - routes.covered();
  const size_t num_ranks = job.topology.num_ranks();
  const size_t micro_batch = placement.micro_batch();
  for (size_t l = 0; l < group.layers.size(); ++l) {
    const int layer = group.layers[l];
    uint32_t* row = loads.Mutable(static_cast<int>(micro_batch), static_cast<int>(l)).data() +
                    size_t{1} * placement.source_rank() * job.num_experts();
    absl::Status status = AddRow(job, layer, placement,
                                 routes.counts.data() + size_t{1} * layer * job.num_experts(), row);
    if (status.ok() && placement.padding_rows() > 0) {
      status = AddPadding(job, layer, placement, row);
    }
    if (!status.ok()) return status;
    const uint64_t unrouted = never_came + routes.unrouted[layer];
    missing[(micro_batch * group.layers.size() + l) * num_ranks + placement.source_rank()] +=
        unrouted;
    sums.expected += expected;
    sums.missing += unrouted;
  }
  return absl::OkStatus();
}

// Deals the missing tokens of every (micro-batch, rank) out by the mean of their layer.
absl::Status SpreadMissing(const Job& job, const EpGroup& group, const MissingTokens& missing,
                           Loads& loads) {
  const int num_layers = static_cast<int>(group.layers.size());
  const int num_ranks = job.topology.num_ranks();
  const int num_micro_batches = loads.shape().micro_batches;
  for (int l = 0; l < num_layers; ++l) {
    // The mean of what was recorded, before any of it is spread.
    std::vector<uint64_t> weights(job.num_experts());
    for (int m = 0; m < num_micro_batches; ++m) {
      absl::Span<const uint32_t> matrix = loads.At(m, l);
      for (size_t i = 0; i < matrix.size(); ++i) weights[i % weights.size()] += matrix[i];
    }
    for (int m = 0; m < num_micro_batches; ++m) {
      for (int s = 0; s < num_ranks; ++s) {
        const uint64_t tokens = missing[(size_t{1} * m * num_layers + l) * num_ranks + s];
        if (tokens == 0) continue;
        absl::Status status =
            Spread(tokens * job.top_k(), weights,
                   loads.Mutable(m, l).data() + size_t{1} * s * job.num_experts());
        if (!status.ok()) {
          return absl::InvalidArgumentError(absl::StrCat("layer ", job.LayerId(group.layers[l]),
                                                         ", micro-batch ", m, ", rank ", s, ": ",
                                                         status.message()));
        }
      }
    }
  }
  return absl::OkStatus();
}

// FAILED_PRECONDITION unless every sequence of the data-parallel index has records.
absl::Status CheckRecorded(const v1::Composition& composition, int data_parallel_index,
                           const StepRecords::SequenceMap& sequences) {
  std::vector<std::string> first_ids;
  size_t wanted = 0;
  size_t without = 0;
  for (const v1::SequencePlacement& placement : composition.sequences()) {
    if (static_cast<int>(placement.data_parallel_index()) != data_parallel_index) continue;
    ++wanted;
    if (sequences.contains(placement.sequence_id())) continue;
    if (without++ < kIdsShown) first_ids.push_back(Quoted(placement.sequence_id()));
  }
  if (without == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      without, " of ", wanted, " sequences have no records: ", absl::StrJoin(first_ids, ", "),
      without > kIdsShown ? ", ..." : ""));
}

}  // namespace

absl::Status CheckComposition(const Job& job, const v1::Composition& composition) {
  absl::Status status =
      CheckMicroBatches("composition.num_micro_batches", composition.num_micro_batches());
  if (!status.ok()) return status;
  int num_indices = 0;
  for (const EpGroup& group : job.groups) {
    num_indices = std::max(num_indices, group.data_parallel_index + 1);
  }
  absl::flat_hash_map<absl::string_view, int> seen;
  for (int i = 0; i < composition.sequences_size(); ++i) {
    const v1::SequencePlacement& placement = composition.sequences(i);
    const auto fail = [&](absl::string_view field, auto&&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("composition.sequences[", i, "].", field, ": ", what...));
    };
    if (placement.sequence_id().empty()) return fail("sequence_id", "expected an id, got none");
    const auto [first, added] = seen.emplace(placement.sequence_id(), i);
    if (!added) {
      return fail("sequence_id", Quoted(placement.sequence_id()), " is already placed by entry ",
                  first->second);
    }
    if (placement.micro_batch() >= composition.num_micro_batches()) {
      return fail("micro_batch", "expected less than num_micro_batches ",
                  composition.num_micro_batches(), ", got ", placement.micro_batch());
    }
    if (placement.source_rank() >= static_cast<uint32_t>(job.topology.num_ranks())) {
      return fail("source_rank", "expected less than ", job.topology.num_ranks(), ", got ",
                  placement.source_rank());
    }
    if (placement.data_parallel_index() >= static_cast<uint32_t>(num_indices)) {
      return fail("data_parallel_index", "expected less than ", num_indices, ", got ",
                  placement.data_parallel_index());
    }
    constexpr uint32_t kMaxPadding = 1 << 20;
    if (placement.padding_rows() > kMaxPadding) {
      return fail("padding_rows", "expected at most ", kMaxPadding, ", got ",
                  placement.padding_rows());
    }
  }
  return absl::OkStatus();
}

int64_t LoadBytes(const LoadShape& shape) {
  constexpr double kMost = int64_t{1} << 60;
  const double entries = double{1} * shape.micro_batches * shape.layers * shape.sources;
  return static_cast<int64_t>(std::min(kMost, entries * (sizeof(uint32_t) * shape.experts)));
}

LoadShape GroupLoadShape(const Job& job, int group, int num_micro_batches) {
  return {.micro_batches = num_micro_batches,
          .layers = static_cast<int>(job.groups[group].layers.size()),
          .sources = job.topology.num_ranks(),
          .experts = job.num_experts()};
}

absl::StatusOr<GroupLoads> MakeGroupLoads(const Job& job, int group_index,
                                          const v1::Composition& composition,
                                          const StepRecords::SequenceMap& sequences) {
  const EpGroup& group = job.groups[group_index];
  absl::Status status = CheckRecorded(composition, group.data_parallel_index, sequences);
  if (!status.ok()) return status;
  const LoadShape shape =
      GroupLoadShape(job, group_index, static_cast<int>(composition.num_micro_batches()));
  absl::StatusOr<Loads> loads = Loads::Create(shape);
  if (!loads.ok()) return loads.status();
  MissingTokens missing(size_t{1} * shape.micro_batches * shape.layers * shape.sources);
  Sums sums;
  for (const v1::SequencePlacement& placement : composition.sequences()) {
    if (static_cast<int>(placement.data_parallel_index()) != group.data_parallel_index) continue;
    const SequenceRoutes& routes = sequences.find(placement.sequence_id())->second;
    status = AddSequence(job, group, placement, routes, *loads, missing, sums);
    if (!status.ok()) return status;
  }
  const double share = sums.expected == 0
                           ? 0
                           : static_cast<double>(sums.missing) / static_cast<double>(sums.expected);
  if (share > job.spec.max_missing_share()) {
    return absl::FailedPreconditionError(
        absl::StrCat("EP group \"", group.name, "\": ", sums.missing, " of ", sums.expected,
                     " (token, layer) pairs have no recorded route, a share of ", share,
                     "; max_missing_share is ", job.spec.max_missing_share()));
  }
  status = SpreadMissing(job, group, missing, *loads);
  if (!status.ok()) return status;
  return GroupLoads{*std::move(loads), share};
}

absl::Status CheckCountsShape(const Job& job, int group, const v1::LoadCounts& counts) {
  absl::Status status = CheckMicroBatches("counts.num_micro_batches", counts.num_micro_batches());
  if (!status.ok()) return status;
  const LoadShape shape = GroupLoadShape(job, group, static_cast<int>(counts.num_micro_batches()));
  for (auto [field, expected, got] :
       {std::tuple{"num_layers", shape.layers, counts.num_layers()},
        {"num_source_ranks", shape.sources, counts.num_source_ranks()},
        {"num_experts", shape.experts, counts.num_experts()}}) {
    if (got != static_cast<uint32_t>(expected)) {
      return absl::InvalidArgumentError(absl::StrCat("counts.", field, ": expected ", expected,
                                                     " for EP group \"", job.groups[group].name,
                                                     "\", got ", got));
    }
  }
  return absl::OkStatus();
}

absl::Status CopyEntries(const Job& job, int group, const v1::LoadCounts& counts, Loads& loads,
                         int64_t& next_entry) {
  if (counts.first_entry() != next_entry) {
    return absl::InvalidArgumentError(
        absl::StrCat("counts.first_entry: expected ", next_entry, ", got ", counts.first_entry()));
  }
  const LoadShape& shape = loads.shape();
  const int64_t num_entries = int64_t{shape.micro_batches} * shape.layers;
  if (counts.entries_size() > num_entries - next_entry) {
    return absl::InvalidArgumentError(absl::StrCat("counts.entries: expected ", num_entries,
                                                   " (num_micro_batches x num_layers)", ", got ",
                                                   next_entry + counts.entries_size()));
  }
  for (const v1::LayerLoads& entry : counts.entries()) {
    const int micro_batch = static_cast<int>(next_entry / shape.layers);
    const int layer = static_cast<int>(next_entry % shape.layers);
    absl::Span<uint32_t> matrix = loads.Mutable(micro_batch, layer);
    if (static_cast<size_t>(entry.counts_size()) != matrix.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", job.LayerId(job.groups[group].layers[layer]), ", micro-batch ",
                       micro_batch, ": expected ", shape.sources, " x ", shape.experts, " = ",
                       matrix.size(), " counts, got ", entry.counts_size()));
    }
    std::copy(entry.counts().begin(), entry.counts().end(), matrix.begin());
    ++next_entry;
  }
  return absl::OkStatus();
}

absl::StatusOr<Loads> LoadsFromCounts(const Job& job, int group, const v1::LoadCounts& counts) {
  absl::Status status = CheckCountsShape(job, group, counts);
  if (!status.ok()) return status;
  const LoadShape shape = GroupLoadShape(job, group, static_cast<int>(counts.num_micro_batches()));
  const int64_t num_entries = int64_t{shape.micro_batches} * shape.layers;
  if (counts.first_entry() != 0 || counts.entries_size() != num_entries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "counts.entries: expected ", num_entries, " (num_micro_batches x num_layers)",
        " from entry 0, got ", counts.entries_size(), " from entry ", counts.first_entry()));
  }
  absl::StatusOr<Loads> loads = Loads::Create(shape);
  if (!loads.ok()) return loads.status();
  int64_t next_entry = 0;
  status = CopyEntries(job, group, counts, *loads, next_entry);
  if (!status.ok()) return status;
  return loads;
}

}  // namespace relibra::server

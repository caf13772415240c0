#include "planner_service/server/sequence_packing.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner_service/core/pack.h"
#include "planner_service/server/quoted.h"

namespace relibra::server {
namespace {

constexpr uint32_t kMaxMicroBatches = 1 << 20;
constexpr size_t kIdsShown = 5;

// The sequences to pack, in columns.
struct Columns {
  std::vector<std::string> ids;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> counts;  // [sequences, layers, experts]
  std::vector<uint32_t> prompt_groups;
  MemoryCharge charge;
};

absl::Status CheckRequest(const Job& job, const v1::PackSequencesRequest& request) {
  if (request.num_micro_batches() < 1 || request.num_micro_batches() > kMaxMicroBatches) {
    return absl::InvalidArgumentError(absl::StrCat("num_micro_batches: expected 1 to ",
                                                   kMaxMicroBatches, ", got ",
                                                   request.num_micro_batches()));
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (int i = 0; i < request.sequence_ids_size(); ++i) {
    if (!seen.insert(request.sequence_ids(i)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequence_ids[", i, "]: ", Quoted(request.sequence_ids(i)), " is given twice"));
    }
  }
  for (const EpGroup& group : job.groups) {
    if (group.data_parallel_index != 0) {
      return absl::UnimplementedError(
          "sequences of a job of several data-parallel indices are not packed");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> IdsToPack(const v1::PackSequencesRequest& request,
                                                   const StepRecords::SequenceMap& sequences) {
  if (request.sequence_ids().empty()) {
    std::vector<std::string> all;
    all.reserve(sequences.size());
    for (const auto& [id, routes] : sequences) all.push_back(id);
    std::sort(all.begin(), all.end());
    return all;
  }
  std::vector<std::string> first_missing;
  size_t missing = 0;
  for (const std::string& id : request.sequence_ids()) {
    if (sequences.contains(id)) continue;
    if (missing++ < kIdsShown) first_missing.push_back(Quoted(id));
  }
  if (missing > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(missing, " of ", request.sequence_ids_size(), " sequences have no records: ",
                     absl::StrJoin(first_missing, ", "), missing > kIdsShown ? ", ..." : ""));
  }
  return std::vector<std::string>(request.sequence_ids().begin(), request.sequence_ids().end());
}

absl::Status FillColumns(const Job& job, const v1::PackSequencesRequest& request, Step& step,
                         const StepRecords::SequenceMap& sequences, Columns& columns) {
  absl::StatusOr<std::vector<std::string>> ids = IdsToPack(request, sequences);
  if (!ids.ok()) return ids.status();
  const size_t histogram = size_t{1} * job.num_layers() * job.num_experts();
  absl::StatusOr<MemoryCharge> charge =
      step.account().Charge(static_cast<int64_t>(ids->size() * histogram * sizeof(uint32_t)));
  if (!charge.ok()) return charge.status();
  columns.charge = *std::move(charge);
  columns.ids = *std::move(ids);
  columns.counts.reserve(columns.ids.size() * histogram);
  absl::flat_hash_map<std::string, uint32_t> prompts;
  uint32_t last_prompt = 0;
  for (const std::string& id : columns.ids) {
    const SequenceRoutes& routes = sequences.find(id)->second;
    columns.tokens.push_back(
        static_cast<uint32_t>(std::max<uint64_t>(routes.sequence_tokens, routes.expected())));
    columns.counts.insert(columns.counts.end(), routes.counts.begin(), routes.counts.end());
    // Without a prompt group a sequence is a group of its own.
    columns.prompt_groups.push_back(
        routes.prompt_group.empty()
            ? last_prompt++
            : prompts.try_emplace(routes.prompt_group, last_prompt).first->second);
    if (!routes.prompt_group.empty() && columns.prompt_groups.back() == last_prompt) ++last_prompt;
  }
  return absl::OkStatus();
}

// The homes of all layers, whichever group has them.
Placement HomesOfAllLayers(JobState& job) {
  Placement homes(job.job().num_layers());
  for (int g = 0; g < job.num_groups(); ++g) {
    const std::shared_ptr<const Placement> of_group = job.group(g).homes.Get();
    const std::vector<int>& layers = job.job().groups[g].layers;
    for (size_t l = 0; l < layers.size(); ++l) homes[layers[l]] = (*of_group)[l];
  }
  return homes;
}

v1::PackSequencesResponse Response(const v1::PackSequencesRequest& request, const Columns& columns,
                                   const Packing& packing) {
  v1::PackSequencesResponse response;
  response.set_node_imbalance(packing.node_imbalance);
  response.set_node_imbalance_before(packing.node_imbalance_before);
  v1::Composition& composition = *response.mutable_composition();
  composition.set_num_micro_batches(request.num_micro_batches());
  for (size_t q = 0; q < columns.ids.size(); ++q) {
    v1::SequencePlacement& placement = *composition.add_sequences();
    placement.set_sequence_id(columns.ids[q]);
    placement.set_micro_batch(packing.micro_batches[q]);
    placement.set_source_rank(packing.source_ranks[q]);
  }
  return response;
}

}  // namespace

absl::StatusOr<v1::PackSequencesResponse> ProposeComposition(
    JobState& job, const v1::PackSequencesRequest& request, WorkerPool& pool) {
  absl::Status status = CheckRequest(job.job(), request);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<Step>> step =
      job.steps().Find({request.key().policy_version(), request.key().step()});
  if (!step.ok()) return step.status();
  Columns columns;
  status = (*step)->records().Read([&](const StepRecords::SequenceMap& sequences) {
    return FillColumns(job.job(), request, **step, sequences, columns);
  });
  if (!status.ok()) return status;
  if (columns.ids.empty()) {
    return absl::FailedPreconditionError("no sequence of the step has records");
  }

  const size_t num_sequences = columns.ids.size();
  std::vector<uint32_t> given_ranks(num_sequences);
  std::vector<uint32_t> given_micro_batches(num_sequences);
  for (size_t q = 0; q < num_sequences; ++q) {
    given_ranks[q] = static_cast<uint32_t>(q % job.job().topology.num_ranks());
    given_micro_batches[q] = static_cast<uint32_t>(q * request.num_micro_batches() / num_sequences);
  }
  absl::StatusOr<Packing> packing =
      PackStep({.ids = columns.ids,
                .tokens = columns.tokens,
                .counts = columns.counts,
                .prompt_groups = columns.prompt_groups,
                .source_ranks = given_ranks,
                .micro_batches = given_micro_batches},
               job.job().topology, HomesOfAllLayers(job),
               {.micro_batches = static_cast<int>(request.num_micro_batches()),
                .max_tokens = request.max_tokens(),
                .keep_prompt_groups = request.keep_prompt_groups()},
               [&pool](int n, absl::FunctionRef<void(int)> task) { pool.ParallelFor(n, task); });
  if (!packing.ok()) return packing.status();
  return Response(request, columns, *packing);
}

}  // namespace relibra::server

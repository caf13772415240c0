#include "planner_service/server/request_digest.h"

#include <openssl/sha.h>

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace relibra::server {
namespace {

std::string HexSha256(absl::string_view bytes) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return absl::BytesToHexString(hash);
}

}  // namespace

std::string CompositionDigest(const v1::Composition& composition) {
  std::vector<const v1::SequencePlacement*> placements;
  placements.reserve(composition.sequences_size());
  for (const v1::SequencePlacement& placement : composition.sequences()) {
    placements.push_back(&placement);
  }
  std::sort(placements.begin(), placements.end(),
            [](const auto* a, const auto* b) { return a->sequence_id() < b->sequence_id(); });
  // The length before each id keeps ids with odd characters apart.
  std::string text = absl::StrCat(composition.num_micro_batches(), "\n");
  for (const v1::SequencePlacement* placement : placements) {
    absl::StrAppend(&text, placement->sequence_id().size(), ":", placement->sequence_id(), " ",
                    placement->micro_batch(), " ", placement->source_rank(), " ",
                    placement->data_parallel_index(), " ", placement->padding_rows(), "\n");
  }
  return absl::StrCat("composition:", HexSha256(text));
}

std::string LoadsDigest(const Loads& loads) {
  const LoadShape& shape = loads.shape();
  const absl::Span<const uint32_t> counts = loads.counts();
  const absl::string_view bytes(reinterpret_cast<const char*>(counts.data()),
                                counts.size() * sizeof(uint32_t));
  return absl::StrCat("counts:", shape.micro_batches, "x", shape.layers, "x", shape.sources, "x",
                      shape.experts, ":", HexSha256(bytes));
}

std::string OptionsDigest(const PlanOptions& options) {
  const std::string bridges = options.bridges.has_value() ? absl::StrCat(*options.bridges) : "auto";
  const std::string max_moves =
      options.max_moves.has_value() ? absl::StrCat(*options.max_moves) : "any";
  return absl::StrCat("effort ", options.effort == Effort::kThorough ? "thorough" : "fast",
                      ", bridges ", bridges, ", max_moves ", max_moves, ", move_cost ",
                      options.move_cost, ", replica_cost ", options.replica_cost, ", seed ",
                      options.seed);
}

}  // namespace relibra::server

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/trace/npy.h"
#include "planner_service/trace/npz.h"
#include "planner_service/trace/npz_trace.h"

namespace relibra {
namespace {

std::string Uint32Npy(absl::Span<const size_t> shape, absl::Span<const uint32_t> numbers) {
  return NpyBytes("<u4", shape,
                  absl::string_view(reinterpret_cast<const char*>(numbers.data()),
                                    numbers.size() * sizeof(uint32_t)));
}

std::string TextNpy(const std::vector<std::string>& texts) {
  size_t width = 1;
  for (const std::string& text : texts) width = std::max(width, text.size());
  std::string data;
  for (const std::string& text : texts) {
    data += text;
    data.append(width - text.size(), '\0');
  }
  return NpyBytes(absl::StrCat("|S", width), {texts.size()}, data);
}

using Arrays = std::vector<std::pair<std::string, std::string>>;

void AddTopK(int top_k, Arrays& arrays) {
  const auto number = static_cast<uint32_t>(top_k);
  if (top_k > 0) arrays.emplace_back("top_k", Uint32Npy({}, {number}));
}

Arrays ArraysOf(const CountTrace& trace) {
  const LoadShape& shape = trace.loads.shape();
  const auto m = static_cast<size_t>(shape.micro_batches);
  const auto l = static_cast<size_t>(shape.layers);
  const auto s = static_cast<size_t>(shape.sources);
  const auto e = static_cast<size_t>(shape.experts);
  Arrays arrays;
  arrays.emplace_back("loads", Uint32Npy({m, l, s, e}, trace.loads.counts()));
  arrays.emplace_back("layer_ids", Uint32Npy({l}, trace.layer_ids));
  AddTopK(trace.top_k, arrays);
  if (!trace.unrouted.empty()) {
    arrays.emplace_back("unrouted_tokens", Uint32Npy({m, l, s}, trace.unrouted));
  }
  return arrays;
}

Arrays ArraysOf(const SequenceTrace& trace) {
  const size_t q = trace.num_sequences();
  const size_t l = trace.num_layers();
  Arrays arrays;
  arrays.emplace_back("sequence_counts",
                      Uint32Npy({q, l, static_cast<size_t>(trace.num_experts)}, trace.counts));
  arrays.emplace_back("sequence_tokens", Uint32Npy({q}, trace.tokens));
  arrays.emplace_back("sequence_ids", TextNpy(trace.ids));
  arrays.emplace_back("layer_ids", Uint32Npy({l}, trace.layer_ids));
  AddTopK(trace.top_k, arrays);
  if (!trace.unrouted.empty()) {
    arrays.emplace_back("unrouted_tokens", Uint32Npy({q, l}, trace.unrouted));
  }
  if (!trace.prompt_groups.empty()) {
    arrays.emplace_back("prompt_groups", Uint32Npy({q}, trace.prompt_groups));
  }
  if (!trace.source_ranks.empty()) {
    arrays.emplace_back("sequence_rank", Uint32Npy({q}, trace.source_ranks));
    arrays.emplace_back("sequence_micro_batch", Uint32Npy({q}, trace.micro_batches));
  }
  return arrays;
}

}  // namespace

absl::StatusOr<std::string> NpzOfTrace(const Trace& trace) {
  return NpzBytes(std::visit([](const auto& routing) { return ArraysOf(routing); }, trace.routing));
}

}  // namespace relibra

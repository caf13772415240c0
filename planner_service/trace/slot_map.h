// Placements as other systems keep them: for every layer, which logical expert sits in each
// physical slot, rank by rank. An expert may sit in several slots.
//
//   EPLB, SGLang (--init-expert-location)   {"physical_to_logical_map": [[5,6,5,7], …]}
//                 or, loads to plan from,   {"logical_count": [L][E] or [steps][L][E]}
//   TensorRT-LLM (moe_config.load_balancer) num_slots: 4
//                                           initial_global_assignments:
//                                             3: [5, 6, 5, 7]
//                                           layer_updates_per_iter: 0
//   vLLM-Ascend (expert_map_path)           {"moe_layer_count": 1, "layer_list": [{"layer_id": 0,
//                                             "device_count": 2, "device_list":
//                                             [{"device_id": 0, "device_expert": [5, 6]}, …]}]}
//
// Errors are INVALID_ARGUMENT, start with `name` (the file) and name the field and its index. All
// functions are thread-safe.
#ifndef RELIBRA_PLANNER_SERVICE_TRACE_SLOT_MAP_H_
#define RELIBRA_PLANNER_SERVICE_TRACE_SLOT_MAP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner_service/core/plan.h"
#include "planner_service/core/topology.h"

namespace relibra {

struct SlotMap {
  std::vector<uint32_t> layer_ids = {};         // [L], ascending
  std::vector<std::vector<int32_t>> rows = {};  // [L][ranks x slots a rank], all of one length

  friend bool operator==(const SlotMap&, const SlotMap&) = default;
};

// SGLang's JSON: exactly the one field physical_to_logical_map. Its rows are numbered 0..L-1
// (SGLang has one for every hidden layer, dense ones too).
absl::StatusOr<SlotMap> ParseSglangSlots(absl::string_view text, absl::string_view name);

// SGLang's other form: exactly the one field logical_count. Counts [L][E]; those of several steps
// are summed, and the sums fit into 32 bits.
absl::StatusOr<std::vector<std::vector<uint32_t>>> ParseSglangCounts(absl::string_view text,
                                                                     absl::string_view name);

// vLLM-Ascend's JSON. Every device has as many slots.
absl::StatusOr<SlotMap> ParseAscendSlots(absl::string_view text, absl::string_view name);

std::string SglangJson(const SlotMap& map);
std::string TensorRtYaml(const SlotMap& map);
// num_ranks divides the rows' length.
std::string AscendJson(const SlotMap& map, int num_ranks);

// Homes [L][E]: every expert's home is a rank that holds it, and every rank is home to E/P experts.
// An error when the slots do not divide over the ranks, an expert is missing or not in
// 0..num_experts-1, or no such homes exist.
absl::StatusOr<Placement> HomesOfSlots(const SlotMap& map, const Topology& topology,
                                       int num_experts, absl::string_view name);

// A plan's homes and the replicas of one micro-batch as slots: E/P + R slots a rank, homes
// ascending, then the replica slots; one without a replica repeats the rank's first expert, as
// these forms know no empty slot. With micro_batch -1 homes alone, E/P slots a rank.
SlotMap SlotsOfPlan(const Plan& plan, absl::Span<const uint32_t> layer_ids, int micro_batch);

}  // namespace relibra

#endif  // RELIBRA_PLANNER_SERVICE_TRACE_SLOT_MAP_H_

// A job as the planner works with it: its spec, checked and with defaults filled in.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_JOB_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_JOB_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner_service/core/planner.h"
#include "planner_service/core/topology.h"
#include "relibra/v1/job.pb.h"

namespace relibra::server {

struct EpGroup {
  std::string name;
  std::vector<int> layers;  // which of Model.moe_layer_ids, as indices into that list, ascending
  int data_parallel_index = 0;
};

// Immutable once made; threads share it by shared_ptr<const Job>.
struct Job {
  v1::JobSpec spec;  // with defaults filled in
  Topology topology;
  std::vector<EpGroup> groups;
  // The row of a record's layer axis that holds each MoE layer; [moe layers].
  std::vector<int> layer_rows;
  // The length of a record's layer axis.
  int axis_length = 0;

  const std::string& name() const { return spec.job(); }
  int num_experts() const { return static_cast<int>(spec.model().num_experts()); }
  int num_layers() const { return spec.model().moe_layer_ids_size(); }
  int top_k() const { return static_cast<int>(spec.model().top_k()); }
  // The model's own number of a MoE layer given by its index.
  int LayerId(int layer) const { return static_cast<int>(spec.model().moe_layer_ids(layer)); }

  // The group of that name; the only group for an empty name. NOT_FOUND when there is none of the
  // name, INVALID_ARGUMENT when the name is empty and there are several.
  absl::StatusOr<int> GroupIndex(absl::string_view name) const;
};

// Checks every field and fills defaults in. INVALID_ARGUMENT naming the field and what is expected.
absl::StatusOr<std::shared_ptr<const Job>> MakeJob(v1::JobSpec spec);

// The first difference between two specs (both with defaults), e.g.
// "model.num_experts: 64 -> 128"; empty when they are the same.
std::string FirstDifference(const v1::JobSpec& known, const v1::JobSpec& asked);

// The largest expert id that a type can carry; -1 for a type this planner does not know.
int64_t LargestId(v1::IdType type);

// OK when the name is 1 to 63 of [a-z0-9-]; else INVALID_ARGUMENT that begins with the field.
absl::Status CheckName(absl::string_view field, absl::string_view name);

// Checks options (field: how to call them in a message) and converts them to the core's.
absl::StatusOr<PlanOptions> MakePlanOptions(absl::string_view field,
                                            const v1::PlanOptions& options);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_JOB_H_

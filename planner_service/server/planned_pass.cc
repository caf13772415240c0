#include "planner_service/server/planned_pass.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/trace/plan_message.h"

namespace relibra::server {
std::string ToString(const StepId& id) {
  if (id.policy_version == 0) return absl::StrCat("step ", id.step);
  return absl::StrCat("step ", id.step, " (policy version ", id.policy_version, ")");
}

std::shared_ptr<const Placement> HomesOf(const Plan& plan) {
  auto homes = std::make_shared<Placement>();
  homes->reserve(plan.layers.size());
  for (const LayerPlan& layer : plan.layers) homes->push_back(layer.home_rank);
  return homes;
}

int64_t PlanBytes(const Plan& plan) {
  size_t bytes = sizeof(Plan) + plan.digest.size();
  for (const LayerPlan& layer : plan.layers) {
    bytes += sizeof(LayerPlan) + layer.home_rank.size() * sizeof(int32_t) +
             layer.moves.size() * sizeof(Move);
    for (const std::vector<Replica>& replicas : layer.replicas) {
      bytes += sizeof(std::vector<Replica>) + replicas.size() * sizeof(Replica);
    }
  }
  return static_cast<int64_t>(bytes);
}

v1::Plan PlanHeader(const PlannedPass& pass) {
  v1::Plan header = relibra::PlanHeader(pass.plan, {.job = pass.job->name(),
                                                    .step = pass.key.step.step,
                                                    .policy_version = pass.key.step.policy_version,
                                                    .pass = pass.key.pass,
                                                    .ep_group = pass.group().name});
  header.mutable_summary()->set_missing_share(pass.loads->missing_share);
  return header;
}

v1::LayerPlan LayerMessage(const PlannedPass& pass, int layer, const SplitChoice& choice) {
  const LayerPlan& plan = pass.plan.layers[layer];
  v1::LayerPlan message =
      relibra::LayerMessage(plan, pass.job->LayerId(pass.group().layers[layer]));
  if (!choice.any) return message;
  const auto splits = pass.splits->Get(pass.plan, pass.loads->loads, layer);
  for (int m = 0; m < message.micro_batches_size(); ++m) {
    v1::MicroBatchPlan& micro_batch = *message.mutable_micro_batches(m);
    for (const v1::SplitColumns& columns : (*splits)[m]) {
      if (columns.experts().empty()) continue;
      if (choice.source_rank.has_value() &&
          static_cast<uint32_t>(*choice.source_rank) != columns.source_rank()) {
        continue;
      }
      *micro_batch.add_split_columns() = columns;
    }
  }
  return message;
}

int NumUpdateMessages(const PlannedPass& pass) {
  return 2 + static_cast<int>(pass.plan.layers.size());
}

v1::PlanUpdate UpdateMessage(const PlannedPass& pass, int index, const SplitChoice& splits) {
  v1::PlanUpdate update;
  const int num_layers = static_cast<int>(pass.plan.layers.size());
  if (index == 0) {
    *update.mutable_header() = PlanHeader(pass);
  } else if (index <= num_layers) {
    *update.mutable_layer() = LayerMessage(pass, index - 1, splits);
  } else {
    update.mutable_complete()->set_num_layers(num_layers);
    update.mutable_complete()->set_digest(pass.plan.digest);
  }
  return update;
}

}  // namespace relibra::server

// What the planner tells Prometheus. Names, units and labels are listed in metrics.cc; labels are
// training_job, RPC method, status code and outcome only, so their number is bounded by the quota
// of jobs.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_METRICS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "planner_service/server/planned_pass.h"
#include "relibra/v1/agent.pb.h"

namespace relibra::server {

// Any thread may call. What concerns a job is forgotten with it.
class Metrics {
 public:
  Metrics();

  // What a scrape collects; kept alive by this object.
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

  void JobAdded(const std::string& job);
  void JobRemoved(const std::string& job);

  void RecordsAdded(const std::string& job, uint64_t accepted, uint64_t repeated, uint64_t bytes);
  // since_last_record: from the step's last record to its plan; infinite when it had none.
  void PassPlanned(const PlannedPass& pass, absl::Duration since_last_record);
  void PlanFailed(const std::string& job);
  void StepReported(const v1::StepReport& report);
  // code: as gRPC numbers it.
  void RequestDone(absl::string_view method, int code);

 private:
  struct OfJob {
    prometheus::Counter* records;
    prometheus::Counter* repeated_records;
    prometheus::Counter* record_bytes;
    prometheus::Gauge* balancedness_before;
    prometheus::Gauge* balancedness_after;
    prometheus::Gauge* lower_bound;
    prometheus::Gauge* missing_share;
    prometheus::Histogram* plan_seconds;
    prometheus::Histogram* record_to_plan_seconds;
    prometheus::Counter* plans;
    prometheus::Counter* failed_plans;
    prometheus::Counter* moves;
    prometheus::Counter* replicas;
    prometheus::Counter* replica_bytes;
    prometheus::Counter* move_bytes;
    prometheus::Counter* applied;
    prometheus::Counter* kept_old;
    prometheus::Counter* failed;
  };

  OfJob AddJob(const std::string& job);
  void RemoveJob(const OfJob& metrics);

  const std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& records_;
  prometheus::Family<prometheus::Counter>& repeated_records_;
  prometheus::Family<prometheus::Counter>& record_bytes_;
  prometheus::Family<prometheus::Gauge>& balancedness_before_;
  prometheus::Family<prometheus::Gauge>& balancedness_after_;
  prometheus::Family<prometheus::Gauge>& lower_bound_;
  prometheus::Family<prometheus::Gauge>& missing_share_;
  prometheus::Family<prometheus::Histogram>& plan_seconds_;
  prometheus::Family<prometheus::Histogram>& record_to_plan_seconds_;
  prometheus::Family<prometheus::Counter>& plans_;
  prometheus::Family<prometheus::Counter>& failed_plans_;
  prometheus::Family<prometheus::Counter>& moves_;
  prometheus::Family<prometheus::Counter>& replicas_;
  prometheus::Family<prometheus::Counter>& planned_bytes_;
  prometheus::Family<prometheus::Counter>& step_reports_;
  prometheus::Family<prometheus::Counter>& requests_;

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, OfJob> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_METRICS_H_

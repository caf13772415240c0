// Gauges that are read from the planner's state when Prometheus asks.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_STATE_METRICS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_STATE_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <vector>

#include "planner_service/server/job_registry.h"
#include "planner_service/server/memory_account.h"
#include "planner_service/server/worker_pool.h"

namespace relibra::server {

// Any thread may call. What it refers to must outlive it.
class StateMetrics : public prometheus::Collectable {
 public:
  StateMetrics(const JobRegistry& jobs, const WorkerPool& planning_pool,
               const WorkerPool& stream_pool, std::shared_ptr<MemoryAccount> account)
      : jobs_(jobs),
        planning_pool_(planning_pool),
        stream_pool_(stream_pool),
        account_(std::move(account)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const JobRegistry& jobs_;
  const WorkerPool& planning_pool_;
  const WorkerPool& stream_pool_;
  const std::shared_ptr<MemoryAccount> account_;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_STATE_METRICS_H_

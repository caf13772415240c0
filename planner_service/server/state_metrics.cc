#include "planner_service/server/state_metrics.h"

#include <string>
#include <utility>

namespace relibra::server {
namespace {

prometheus::MetricFamily Gauges(const char* name, const char* help) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  return family;
}

void Add(prometheus::MetricFamily& family, double value, const char* label = nullptr,
         const std::string& label_value = "") {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.gauge.value = value;
  if (label != nullptr) metric.label.push_back({label, label_value});
}

}  // namespace

std::vector<prometheus::MetricFamily> StateMetrics::Collect() const {
  auto jobs = Gauges("relibra_jobs", "Jobs registered.");
  auto agents = Gauges("relibra_agents_connected", "Agents that watch for plans.");
  auto steps = Gauges("relibra_steps_held", "Steps of which records or plans are held.");
  auto job_memory = Gauges("relibra_job_memory_bytes", "Memory held for a job, as charged.");
  const auto all = jobs_.All();
  Add(jobs, static_cast<double>(all.size()));
  for (const auto& job : all) {
    int watching = 0;
    for (int g = 0; g < job->num_groups(); ++g) watching += job->group(g).agents.num_watching();
    const std::string& name = job->job().name();
    Add(agents, watching, "training_job", name);
    Add(steps, static_cast<double>(job->steps().All().size()), "training_job", name);
    Add(job_memory, static_cast<double>(job->account()->used()), "training_job", name);
  }
  auto memory = Gauges("relibra_memory_bytes", "Memory held for all jobs, as charged.");
  Add(memory, static_cast<double>(account_->used()));
  auto limit = Gauges("relibra_memory_limit_bytes", "The quota of relibra_memory_bytes.");
  Add(limit, static_cast<double>(account_->limit()));
  auto queued = Gauges("relibra_queued_tasks", "Tasks that wait for a thread of a pool.");
  Add(queued, planning_pool_.queued(), "pool", "planning");
  Add(queued, stream_pool_.queued(), "pool", "stream");
  std::vector<prometheus::MetricFamily> families;
  for (auto* family : {&jobs, &agents, &steps, &job_memory, &memory, &limit, &queued}) {
    if (!family->metric.empty()) families.push_back(std::move(*family));
  }
  return families;
}

}  // namespace relibra::server

#include "planner_service/server/record_streams.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner_service/server/client_stream.h"
#include "planner_service/server/composition.h"
#include "planner_service/server/quoted.h"
#include "planner_service/server/record_counter.h"
#include "relibra/v1/planner.pb.h"

namespace relibra::server {
namespace {

class RoutingStream : public ClientStream<v1::StreamRoutingRequest, v1::StreamRoutingResponse> {
 public:
  RoutingStream(ServiceContext& context, grpc::ByteBuffer* response)
      : ClientStream(context, "StreamRouting", response) {}

 protected:
  absl::Status Take(const v1::StreamRoutingRequest& request, int64_t bytes) override {
    absl::StatusOr<std::shared_ptr<JobState>> found = context().jobs.Find(request.key().job());
    if (!found.ok()) return found.status();
    JobState& job = **found;
    absl::Status status = AddRecords(job, request, bytes);
    if (!status.ok()) {
      job.SetLastError(status.message());
      spdlog::warn("job={} step={} policy_version={} event=records_refused error={}",
                   job.job().name(), request.key().step(), request.key().policy_version(),
                   Quoted(status.ToString()));
    }
    return status;
  }

  absl::Status Complete(v1::StreamRoutingResponse& response) override {
    response.set_records_accepted(accepted_);
    response.set_records_repeated(repeated_);
    response.set_bytes_received(bytes_);
    for (std::string& warning : warnings_) response.add_warnings(std::move(warning));
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kMaxWarnings = 20;

  absl::Status AddRecords(JobState& job, const v1::StreamRoutingRequest& request, int64_t bytes) {
    if (counter_ == nullptr || &counter_->job() != &job.job()) {
      counter_ = std::make_unique<RecordCounter>(job.shared_job());
    }
    std::vector<CountedRecord> counted;
    counted.reserve(request.records_size());
    for (int i = 0; i < request.records_size(); ++i) {
      absl::StatusOr<CountedRecord> record = counter_->Count(request.records(i));
      if (!record.ok()) {
        return absl::Status(record.status().code(),
                            absl::StrCat("records[", i, "]: ", record.status().message()));
      }
      if (!record->warning.empty() && warnings_.size() < kMaxWarnings) {
        warnings_.push_back(record->warning);
      }
      counted.push_back(*std::move(record));
    }
    absl::StatusOr<std::shared_ptr<Step>> step =
        job.steps().FindOrCreate({request.key().policy_version(), request.key().step()});
    if (!step.ok()) return step.status();
    absl::StatusOr<AddedRecords> added = (*step)->records().Add(counted);
    if (!added.ok()) return added.status();
    accepted_ += added->accepted;
    repeated_ += added->repeated;
    bytes_ += bytes;
    job.AddRecords(added->accepted, bytes);
    context().metrics.RecordsAdded(job.job().name(), added->accepted, added->repeated, bytes);
    return absl::OkStatus();
  }

  uint64_t accepted_ = 0;
  uint64_t repeated_ = 0;
  uint64_t bytes_ = 0;
  std::vector<std::string> warnings_;
  std::unique_ptr<RecordCounter> counter_;  // of the job that the stream named last
};

// Holds the loads until the client has sent all of them; only then do they take effect.
class UploadStream : public ClientStream<v1::UploadLoadsRequest, v1::UploadLoadsResponse> {
 public:
  UploadStream(ServiceContext& context, grpc::ByteBuffer* response)
      : ClientStream(context, "UploadLoads", response) {}

 protected:
  absl::Status Take(const v1::UploadLoadsRequest& request, int64_t) override {
    if (loads_ == nullptr) {
      absl::Status status = Begin(request);
      if (!status.ok()) return status;
    } else if (!SameTarget(request)) {
      return absl::InvalidArgumentError(
          "key, pass, ep_group and shape: expected those of the first message");
    }
    return CopyEntries(job_->job(), group_, request.counts(), loads_->loads, next_entry_);
  }

  absl::Status Complete(v1::UploadLoadsResponse& response) override {
    if (loads_ == nullptr) return absl::InvalidArgumentError("no loads: the stream was empty");
    const LoadShape& shape = loads_->loads.shape();
    const int64_t num_entries = int64_t{shape.micro_batches} * shape.layers;
    if (next_entry_ != num_entries) {
      return absl::InvalidArgumentError(absl::StrCat("the stream ended after ", next_entry_, " of ",
                                                     num_entries,
                                                     " entries (num_micro_batches x num_layers)"));
    }
    response.set_entries(num_entries);
    return step_->PutUpload(pass_, group_, std::move(loads_));
  }

 private:
  absl::Status Begin(const v1::UploadLoadsRequest& request) {
    absl::StatusOr<std::shared_ptr<JobState>> job = context().jobs.Find(request.key().job());
    if (!job.ok()) return job.status();
    absl::StatusOr<int> group = (*job)->job().GroupIndex(request.ep_group());
    if (!group.ok()) return group.status();
    absl::StatusOr<std::string> pass = PassName(request.pass());
    if (!pass.ok()) return pass.status();
    absl::Status shape_ok = CheckCountsShape((*job)->job(), *group, request.counts());
    if (!shape_ok.ok()) return shape_ok;
    absl::StatusOr<std::shared_ptr<Step>> step =
        (*job)->steps().FindOrCreate({request.key().policy_version(), request.key().step()});
    if (!step.ok()) return step.status();
    const LoadShape shape = GroupLoadShape((*job)->job(), *group,
                                           static_cast<int>(request.counts().num_micro_batches()));
    absl::StatusOr<MemoryCharge> charge = (*step)->account().Charge(LoadBytes(shape));
    if (!charge.ok()) return charge.status();
    absl::StatusOr<Loads> loads = Loads::Create(shape);
    if (!loads.ok()) return loads.status();
    job_ = *std::move(job);
    step_ = *std::move(step);
    group_ = *group;
    pass_ = *std::move(pass);
    first_ = request;
    first_.mutable_counts()->clear_entries();
    loads_ = std::make_shared<ChargedLoads>(ChargedLoads{*std::move(loads), 0, *std::move(charge)});
    return absl::OkStatus();
  }

  bool SameTarget(const v1::UploadLoadsRequest& request) const {
    return request.key().job() == first_.key().job() &&
           request.key().step() == first_.key().step() &&
           request.key().policy_version() == first_.key().policy_version() &&
           request.pass() == first_.pass() && request.ep_group() == first_.ep_group() &&
           request.counts().num_micro_batches() == first_.counts().num_micro_batches() &&
           request.counts().num_layers() == first_.counts().num_layers() &&
           request.counts().num_source_ranks() == first_.counts().num_source_ranks() &&
           request.counts().num_experts() == first_.counts().num_experts();
  }

  v1::UploadLoadsRequest first_;  // without its entries
  std::shared_ptr<JobState> job_;
  std::shared_ptr<Step> step_;
  std::string pass_;
  int group_ = 0;
  std::shared_ptr<ChargedLoads> loads_;
  int64_t next_entry_ = 0;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewRoutingStream(ServiceContext& context,
                                                            grpc::ByteBuffer* response) {
  auto* stream = new RoutingStream(context, response);
  stream->Start();
  return stream;
}

grpc::ServerReadReactor<grpc::ByteBuffer>* NewUploadStream(ServiceContext& context,
                                                           grpc::ByteBuffer* response) {
  auto* stream = new UploadStream(context, response);
  stream->Start();
  return stream;
}

}  // namespace relibra::server

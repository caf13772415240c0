#include <atomic>

#include "planner_service/server/state_store.h"

namespace relibra::server {
namespace {

class ForgetfulStateStore : public StateStore {
 public:
  absl::StatusOr<int64_t> AddJob(const v1::JobSpec&) override { return ++last_id_; }
  absl::Status DeleteJob(int64_t) override { return absl::OkStatus(); }
  absl::Status AddPasses(int64_t, absl::Span<const std::shared_ptr<const PlannedPass>>,
                         absl::Span<const StoredHomes>) override {
    return absl::OkStatus();
  }
  absl::Status TakeBack(int64_t, const PlannedPass&, const StoredHomes*) override {
    return absl::OkStatus();
  }
  absl::Status ForgetSteps(int64_t, absl::Span<const StepId>) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<StoredJob>> Load() override { return std::vector<StoredJob>(); }

 private:
  std::atomic<int64_t> last_id_ = 0;
};

}  // namespace

std::unique_ptr<StateStore> NewForgetfulStateStore() {
  return std::make_unique<ForgetfulStateStore>();
}

}  // namespace relibra::server

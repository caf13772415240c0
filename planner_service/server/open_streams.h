// The client streams that are open, so that a planner that drains can end them.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_OPEN_STREAMS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_OPEN_STREAMS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace relibra::server {

// Any thread may call.
class OpenStreams {
 public:
  using EndCallback = std::function<void(const absl::Status&)>;

  // Registers a stream; `end` may be called once, with the lock held, until Remove returns. When
  // the streams were ended already, it is not registered and the reason is returned.
  absl::Status Add(EndCallback end, uint64_t& name) {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    name = ++last_name_;
    streams_.emplace(name, std::move(end));
    return absl::OkStatus();
  }

  void Remove(uint64_t name) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(name);
  }

  // Ends every stream, and those to come, with `status` (not OK).
  void EndAll(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = status;
    for (const auto& [name, end] : streams_) end(status);
  }

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, EndCallback> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_name_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_OPEN_STREAMS_H_

// A client-streaming call whose messages are worked on outside gRPC's threads, one at a time.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_CLIENT_STREAM_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_CLIENT_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planner_service/server/raw_message.h"
#include "planner_service/server/service_context.h"

namespace relibra::server {

// The next message is read only after the one before was taken: that is the back-pressure. A
// message is charged to the planner's memory while it waits and is worked on. The object deletes
// itself when the call is over.
template <typename Request, typename Response>
class ClientStream : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  // Begins to read. `this` must be complete: call it after construction.
  void Start() {
    absl::Status open = context_.open_streams.Add(
        [this](const absl::Status& status) { EndFromOutside(status); }, name_);
    if (!open.ok()) {
      End(open);
      return;
    }
    this->StartRead(&bytes_);
  }

  void OnReadDone(bool ok) override {
    bool finish = false;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return;
      working_ = ok;
      if (!ok) finish = ended_ = true;
    }
    if (finish) {
      Response response;
      const absl::Status status = Complete(response);
      if (status.ok()) *response_ = SerializeRaw(response);
      Finish(status);
    } else {
      context_.stream_pool.Submit([this] { Work(); });
    }
  }

  void OnDone() override {
    context_.open_streams.Remove(name_);
    delete this;
  }

 protected:
  ClientStream(ServiceContext& context, std::string method, grpc::ByteBuffer* response)
      : context_(context), method_(std::move(method)), response_(response) {}
  ~ClientStream() override = default;

  // Takes one message of `bytes` bytes; an error ends the call. On the stream pool.
  virtual absl::Status Take(const Request& request, int64_t bytes) = 0;
  // The client has sent all, or is gone: fills the response in. On a thread of gRPC; quick.
  virtual absl::Status Complete(Response& response) = 0;

  ServiceContext& context() { return context_; }

 private:
  absl::Status TakeBytes() {
    const auto bytes = static_cast<int64_t>(bytes_.Length());
    absl::Status status = CheckMessageBytes(bytes, context_.max_message_bytes);
    if (!status.ok()) return status;
    absl::StatusOr<MemoryCharge> charge = context_.account->Charge(bytes);
    if (!charge.ok()) return charge.status();
    Request request;
    status = ParseRaw(bytes_, request);
    return status.ok() ? Take(request, bytes) : status;
  }

  void Work() {
    absl::Status status = TakeBytes();
    bytes_.Clear();
    if (!status.ok()) {
      status = absl::Status(status.code(),
                            absl::StrCat("message ", num_messages_, ": ", status.message()));
    }
    ++num_messages_;
    {
      absl::MutexLock lock(&mutex_);
      working_ = false;
      if (status.ok()) status = end_status_;
      if (status.ok()) {
        // With the lock held, so that nobody can finish the call in between.
        this->StartRead(&bytes_);
        return;
      }
      ended_ = true;
    }
    Finish(status);
  }

  void EndFromOutside(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      end_status_ = status;
      if (ended_ || working_) return;  // Work sees end_status_ when it is done
      ended_ = true;
    }
    Finish(status);
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    Finish(status);
  }

  // The object may be gone when this returns.
  void Finish(const absl::Status& status) {
    context_.metrics.RequestDone(method_, static_cast<int>(status.code()));
    grpc::ServerReadReactor<grpc::ByteBuffer>::Finish(ToGrpc(status));
  }

  ServiceContext& context_;
  const std::string method_;
  uint64_t name_ = 0;
  grpc::ByteBuffer* const response_;
  // Owned by gRPC while it reads, by Work while it works.
  grpc::ByteBuffer bytes_;
  int64_t num_messages_ = 0;

  absl::Mutex mutex_;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_CLIENT_STREAM_H_

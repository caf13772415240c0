// A server-streaming call whose messages are built outside gRPC's threads, one at a time.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_SERVER_STREAM_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_SERVER_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "planner_service/server/service_context.h"

namespace relibra::server {

// The next message is built only after the one before was handed to the transport, so a slow client
// holds one message and no more. At any time exactly one of these goes on: a message is built, a
// message is written, or the stream waits for a wake-up (Resume). The object deletes itself when
// the call is over.
template <typename Message>
class ServerStream : public grpc::ServerWriteReactor<Message> {
 public:
  // Begins to send; after a wait, goes on. Any thread.
  void Resume() {
    context_.stream_pool.Submit([this] { SendNext(); });
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      Resume();
    } else {
      Finish(absl::CancelledError("the client is gone"));
    }
  }

  void OnDone() override { delete this; }

 protected:
  enum class Next {
    kWrite,   // the message is filled in
    kFinish,  // nothing follows, `status` is the call's
    kWait,    // someone will call Resume or Finish; do not touch the stream any more
  };

  ServerStream(ServiceContext& context, std::string method)
      : context_(context), method_(std::move(method)) {}
  ~ServerStream() override = default;

  // On the stream pool.
  virtual Next MakeNext(Message& message, absl::Status& status) = 0;

  // The object may be gone when this returns.
  void Finish(const absl::Status& status) {
    context_.metrics.RequestDone(method_, static_cast<int>(status.code()));
    grpc::ServerWriteReactor<Message>::Finish(ToGrpc(status));
  }

 private:
  void SendNext() {
    absl::Status status;
    message_ = Message();
    switch (MakeNext(message_, status)) {
      case Next::kWrite:
        this->StartWrite(&message_);
        break;
      case Next::kFinish:
        Finish(status);
        break;
      case Next::kWait:
        break;
    }
  }

  ServiceContext& context_;
  const std::string method_;
  Message message_;
};

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_SERVER_STREAM_H_

// Messages that arrive as bytes, for calls whose messages may be large: their size is looked at
// before they are parsed, and they are parsed outside gRPC's threads.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_RAW_MESSAGE_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_RAW_MESSAGE_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace relibra::server {

// RESOURCE_EXHAUSTED naming the flag when a message is larger than it may be.
inline absl::Status CheckMessageBytes(int64_t bytes, int64_t max_message_bytes) {
  if (bytes <= max_message_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      bytes, " bytes exceed the quota of ", max_message_bytes, " bytes (--max-message-bytes)"));
}

// The same for a message that gRPC has parsed.
inline absl::Status CheckMessageBytes(const google::protobuf::MessageLite& message,
                                      int64_t max_message_bytes) {
  return CheckMessageBytes(static_cast<int64_t>(message.ByteSizeLong()), max_message_bytes);
}

// Parses and empties `bytes`. INVALID_ARGUMENT when they are no such message.
template <typename Message>
absl::Status ParseRaw(grpc::ByteBuffer& bytes, Message& message) {
  const grpc::Status status = grpc::SerializationTraits<Message>::Deserialize(&bytes, &message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the bytes are no ", Message::descriptor()->full_name()));
}

template <typename Message>
grpc::ByteBuffer SerializeRaw(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  // Messages of this planner's own making always fit.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_RAW_MESSAGE_H_

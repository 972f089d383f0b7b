// Messages without tensors, between gRPC's bytes and protobuf.
//
// Thread-safe: pure functions.

#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace moe {

// Parses a message of at most kMaxHeadBytes.
// Errors: INVALID_ARGUMENT if it is larger, of which nothing is read then, or
// if the bytes are no such message.
absl::Status ParseSmall(const grpc::ByteBuffer& bytes,
                        google::protobuf::MessageLite* message);

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);

}  // namespace moe

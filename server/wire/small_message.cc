#include "server/wire/small_message.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"
#include "server/wire/message_head.h"

namespace moe {

absl::Status ParseSmall(const grpc::ByteBuffer& bytes,
                        google::protobuf::MessageLite* message) {
  if (bytes.Length() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: want at most ", kMaxHeadBytes, " bytes, got ",
                     bytes.Length()));
  }
  const SilentProtobuf silent;
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) {
    return NoSuchMessage(*message);
  }
  return absl::OkStatus();
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace moe

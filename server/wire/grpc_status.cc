#include "server/wire/grpc_status.h"

#include <string>

namespace moe {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  constexpr size_t kMaxMessage = 1024;
  if (status.ok()) return grpc::Status::OK;
  // The codes of the two libraries are the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kMaxMessage)));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace moe

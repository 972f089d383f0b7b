// The one place that turns our Status into a gRPC status.

#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace moe {

// Same code and message; the message is cut to 1,024 characters.
grpc::Status ToGrpcStatus(const absl::Status& status);
// The code of a status that gRPC gave us, for messages.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace moe

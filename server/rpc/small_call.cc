#include "server/rpc/small_call.h"

#include "server/wire/grpc_status.h"

namespace moe {

SmallCall::SmallCall(const SmallMethod& method, Metrics& metrics,
                     grpc::ByteBuffer* response)
    : response_(*response) {
  if (method.method.has_value()) timer_.emplace(*method.method, metrics);
}

void SmallCall::Respond(const absl::Status& status,
                        const grpc::ByteBuffer& response) {
  response_ = response;  // shares the slices
  if (timer_.has_value()) timer_->Done(status.code(), /*response=*/nullptr);
  Finish(ToGrpcStatus(status));
}

}  // namespace moe

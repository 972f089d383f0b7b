// Calls without tensors, of any service. Their messages are small: nothing is
// made of one before it is known that its caller may call, and how large it is.

#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "experts/base/status_macros.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/metrics/metrics.h"
#include "server/rpc/access_control.h"
#include "server/rpc/request_timer.h"
#include "server/rpc/service_context.h"
#include "server/wire/small_message.h"

namespace moe {

struct SmallMethod {
  // What it is counted as; none: it is not counted.
  std::optional<Method> method{};
  Access access = Access::kCalling;
};

// Reads the message of a call.
// Errors: those of AccessControl, then INVALID_ARGUMENT as ParseSmall.
template <typename Request>
absl::Status ReadSmall(const ServiceContext& services, Access access,
                       const grpc::CallbackServerContext& context,
                       const grpc::ByteBuffer& bytes, Request* request) {
  MOE_RETURN_IF_ERROR(services.access().Authorize(context, access));
  return ParseSmall(bytes, request);
}

// A unary call; deletes itself.
class SmallCall final : public grpc::ServerUnaryReactor {
 public:
  SmallCall(const SmallMethod& method, Metrics& metrics,
            grpc::ByteBuffer* response);
  // A call that owns itself until gRPC's last word on it.
  static SmallCall* Make(const SmallMethod& method, Metrics& metrics,
                         grpc::ByteBuffer* response) {
    return std::make_unique<SmallCall>(method, metrics, response).release();
  }

  // Ends the call. Once, by any thread.
  // response: is sent if the status is OK
  void Respond(const absl::Status& status, const grpc::ByteBuffer& response);

  void OnDone() override { const std::unique_ptr<SmallCall> self(this); }

 private:
  grpc::ByteBuffer& response_;
  std::optional<RequestTimer> timer_;
};

// Responds to a call at once by `fill`, which gets the request, fills the
// response and returns the status.
template <typename Request, typename Response, typename Fill>
grpc::ServerUnaryReactor* RespondNow(ServiceContext& services,
                                     const SmallMethod& method,
                                     const grpc::CallbackServerContext& context,
                                     const grpc::ByteBuffer& bytes,
                                     grpc::ByteBuffer* to, const Fill& fill) {
  SmallCall* const call = SmallCall::Make(method, services.metrics(), to);
  Request request;
  Response response;
  absl::Status status =
      ReadSmall(services, method.access, context, bytes, &request);
  if (status.ok()) status = fill(request, &response);
  call->Respond(status, Serialize(response));
  return call;
}

}  // namespace moe

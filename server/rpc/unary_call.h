// Unary calls of any service, from the bytes of a request to those of its
// response. No thread of gRPC waits for compute.

#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/metrics/metrics.h"
#include "server/rpc/call_request.h"
#include "server/rpc/request_timer.h"
#include "server/rpc/service_context.h"

namespace moe {

// A call without tensors that is counted; deletes itself.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(Method method, Metrics& metrics) : timer_(method, metrics) {}
  // A call that owns itself until gRPC's last word on it.
  static UnaryCall* Make(Method method, Metrics& metrics) {
    return std::make_unique<UnaryCall>(method, metrics).release();
  }

  // Ends the call, whose response has been filled. Once, by any thread.
  void Respond(const absl::Status& status);

  void OnDone() override { const std::unique_ptr<UnaryCall> self(this); }

 private:
  RequestTimer timer_;
};

// Responds to a call at once by `fill`, which returns the status.
grpc::ServerUnaryReactor* RespondNow(ServiceContext& services, Method method,
                                     const grpc::CallbackServerContext& context,
                                     absl::FunctionRef<absl::Status()> fill);

// Responds to a call by the engine. The services must outlive the call.
grpc::ServerUnaryReactor* RunOnEngine(ServiceContext* services,
                                      const UnaryMethod& method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& message,
                                      grpc::ByteBuffer* response);

}  // namespace moe

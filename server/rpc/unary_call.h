// Unary calls of any service that run on the engine, from the bytes of a
// request to those of its response. No thread of gRPC waits for compute.

#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/call_request.h"
#include "server/rpc/service_context.h"

namespace moe {

// Responds to a call by the engine. The services must outlive the call.
grpc::ServerUnaryReactor* RunOnEngine(ServiceContext* services,
                                      const UnaryMethod& method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& message,
                                      grpc::ByteBuffer* response);

}  // namespace moe

// Streams of requests and responses of any service. Each message is a request
// of its own; responses come in the order of the requests.

#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/call_request.h"
#include "server/rpc/service_context.h"

namespace moe {

// Responds to each message of a stream by the engine. The services must outlive
// the call.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RunStream(
    ServiceContext* services, const StreamMethod& method,
    grpc::CallbackServerContext* context);

}  // namespace moe

// A request between its message and the engine. A protocol says how its
// messages become such requests by functions; what they give, and what an RPC
// needs of a protocol, is here.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/common/steady_time.h"
#include "server/engine/engine_request.h"
#include "server/engine/layer_call.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"
#include "server/rpc/service_limits.h"
#include "server/wire/wire_message.h"

namespace moe {

// By what a caller knows which of its requests a response belongs to.
struct RequestLabel {
  std::string request_id;
  std::string model_name;
};

// What a message is read with.
struct ParseContext {
  const ModelRegistry& registry;
  const ServiceLimits& limits;
  SteadyTime now;
};

// A message that has been read and found good.
struct ParsedRequest {
  LayerCall call;
  // Memory of the request's message and of the response.
  int64_t bytes = 0;
  // The message's deadline; the call has one of its own.
  SteadyTime deadline = SteadyTime::max();
  // Where `codec` writes, with the first rows that it encodes.
  std::unique_ptr<OutgoingMessage> response{};
  std::unique_ptr<RequestCodec> codec{};
};

// Reads and checks a message, whose slices the result keeps. Sets the label
// also of a message that is refused, as far as it has one.
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field; those of
// ModelRegistry::FindLayer.
using ParseFunction = absl::StatusOr<ParsedRequest>(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label);
// The response of a stream to a request that failed.
// retry_after_ms: when to try again; 0 = does not apply
using StreamErrorFunction = grpc::ByteBuffer(const RequestLabel& label,
                                             const absl::Status& status,
                                             int64_t retry_after_ms);

// RPCs that run on the engine.
struct UnaryMethod {
  Method method;
  ParseFunction* parse;
};
struct StreamMethod {
  Method method;
  ParseFunction* parse;
  StreamErrorFunction* error;
};

// A request for the engine with all that it refers to, but for the observer.
class CallRequest final {
 public:
  // deadline: of the call
  CallRequest(ParsedRequest parsed, SteadyTime deadline,
              RequestObserver* observer)
      : response_(std::move(parsed.response)),
        codec_(std::move(parsed.codec)),
        engine_request_(std::move(parsed.call),
                        std::min(deadline, parsed.deadline), parsed.bytes,
                        codec_.get(), observer) {}

  EngineRequest& engine_request() { return engine_request_; }
  // The response, once the last rows have been encoded.
  grpc::ByteBuffer TakeResponse() { return response_->Take(); }

 private:
  const std::unique_ptr<OutgoingMessage> response_;
  const std::unique_ptr<RequestCodec> codec_;
  EngineRequest engine_request_;
};

}  // namespace moe

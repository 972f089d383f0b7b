// The messages of moe.v1 as requests to the engine, and its responses.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/call_request.h"

namespace moe {

// v1::ForwardRequest to v1::ForwardResponse: runs a layer.
absl::StatusOr<ParsedRequest> ParseForward(const grpc::ByteBuffer& message,
                                           const ParseContext& context,
                                           RequestLabel* label);
// v1::ForwardRequest to v1::ForwardStreamResponse.
absl::StatusOr<ParsedRequest> ParseStreamedForward(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label);
// The v1::ForwardStreamResponse to a request that failed.
grpc::ByteBuffer ForwardStreamError(const RequestLabel& label,
                                    const absl::Status& status,
                                    int64_t retry_after_ms);
// v1::RouteRequest to v1::RouteResponse: chooses experts.
absl::StatusOr<ParsedRequest> ParseRoute(const grpc::ByteBuffer& message,
                                         const ParseContext& context,
                                         RequestLabel* label);

inline constexpr UnaryMethod kForward = {Method::kForward, &ParseForward};
inline constexpr StreamMethod kForwardStream = {
    Method::kForwardStream, &ParseStreamedForward, &ForwardStreamError};
inline constexpr UnaryMethod kRoute = {Method::kRoute, &ParseRoute};

}  // namespace moe

// What a front asks of a shard, as requests to the engine: rows through some
// experts of a layer.

#pragma once

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/call_request.h"

namespace moe {

// shards::ForwardExpertsRequest to shards::ForwardExpertsResponse.
//
// Each of its rows is a token of the engine with one given expert, whose
// routing weight is the factor on the expert's input, or 1: what comes out is
// the expert's output itself.
//
// Errors besides those of a ParseFunction: FAILED_PRECONDITION if the model is
// loading, its layer is no shard, or its experts are not those that the caller
// wants.
absl::StatusOr<ParsedRequest> ParseForwardExperts(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label);

inline constexpr UnaryMethod kForwardExperts = {Method::kForwardExperts,
                                                &ParseForwardExperts};

}  // namespace moe

// What a request asks of a layer.

#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "server/engine/batch_queue.h"
#include "server/engine/model_registry.h"

namespace moe {

// The matrices that a response may have.
enum class ResponsePart : uint8_t {
  kOutput,          // [tokens, d_model]
  kExpertIds,       // [tokens, k]
  kRoutingWeights,  // [tokens, k]
  kRouterLogits     // [tokens, num_experts]
};
using ResponseParts = absl::InlinedVector<ResponsePart, 4>;

// A value that whoever reads a request and whoever runs it share. All that has
// to be equal for requests to share a batch is in its Key.
struct LayerCall {
  // The layer to run; keeps its model. `layer.metrics` may be null: then
  // nothing is counted.
  ServedLayer layer;
  int64_t tokens = 0;
  // Columns of the routing that the caller gives; 0 = the router chooses.
  int64_t given_k = 0;
  // What comes back, in this order.
  ResponseParts parts;

  const FfnLayer& ffn() const { return *layer.layer->ffn; }
  // Experts per token.
  int64_t k() const { return given_k > 0 ? given_k : ffn().top_k(); }
  // Whether the router alone runs.
  bool route_only() const {
    return given_k == 0 && std::find(parts.begin(), parts.end(),
                                     ResponsePart::kOutput) == parts.end();
  }
  BatchKey Key() const {
    return {
        .layer = layer.layer, .given_k = given_k, .route_only = route_only()};
  }
};

}  // namespace moe

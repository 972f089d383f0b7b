// The tensors that a request gives, whatever the protocol: their checks, and
// their rows.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experts/base/matrix_view.h"
#include "moe/v1/moe.pb.h"
#include "server/engine/model_registry.h"
#include "server/rpc/service_limits.h"
#include "server/wire/tensor_codec.h"

namespace moe {

// Errors: INVALID_ARGUMENT if the id is too long; it is cleared then, since it
// is not to be returned.
absl::Status CheckRequestId(std::string* request_id);

// Hidden states, and maybe a routing, that have been checked against a layer:
// views of the message that they came with. Thread-safe: immutable.
class RequestRows {
 public:
  // Tensors, wherever they are; a routing is given by both or neither.
  struct Tensors {
    const WireTensor& hidden_states;
    const WireTensor* expert_ids = nullptr;
    const WireTensor* routing_weights = nullptr;
  };

  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field;
  // FAILED_PRECONDITION if the layer has no router, being a shard's.
  static absl::StatusOr<RequestRows> Check(const ServedLayer& served,
                                           const Tensors& tensors,
                                           const ServiceLimits& limits);

  int64_t tokens() const { return hidden_states_.rows; }
  // Element type of the hidden states.
  v1::DType dtype() const { return hidden_states_.dtype; }
  // Columns of the routing; 0 = none is given.
  int64_t given_k() const {
    return routing_.has_value() ? routing_->ids.cols : 0;
  }
  // As RequestCodec.
  void Decode(int64_t first, Matrix hidden_states) const;
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const;

 private:
  RequestRows(WireMatrix hidden_states, std::optional<WireRouting> routing)
      : hidden_states_(hidden_states), routing_(routing) {}

  WireMatrix hidden_states_;
  std::optional<WireRouting> routing_;
};

}  // namespace moe

// The tensors that a response has, whatever the protocol: their shapes, their
// sizes, and their rows.

#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moe/v1/moe.pb.h"
#include "server/engine/engine_request.h"
#include "server/engine/layer_call.h"
#include "server/rpc/service_limits.h"
#include "server/wire/wire_message.h"

namespace moe {

// Thread-safe: immutable.
class ResponsePlan {
 public:
  // Bytes that a response may have besides those of its tensors.
  static constexpr int64_t kMaxEnvelopeBytes = 1024;

  // A tensor [tokens, columns].
  struct Tensor {
    ResponsePart part;
    v1::DType dtype;
    int64_t columns;

    int64_t row_bytes() const { return columns * ElementBytes(dtype); }
  };

  // output_dtype: element type of the output, F32, BF16 or F16
  ResponsePlan(const LayerCall& call, v1::DType output_dtype);

  int64_t tokens() const { return tokens_; }
  // In the order of LayerCall::parts.
  absl::Span<const Tensor> tensors() const { return tensors_; }
  // The bytes of all tensors.
  int64_t bytes() const;
  // Errors: INVALID_ARGUMENT if the response does not fit into a message.
  absl::Status CheckSize(const ServiceLimits& limits) const;

  // Writes rows from `first` on of all tensors, which have the same numbers in
  // the message.
  void Encode(int64_t first, const EngineResult& rows,
              const OutgoingMessage& message) const;

 private:
  int64_t tokens_;
  absl::InlinedVector<Tensor, 4> tensors_;
};

}  // namespace moe

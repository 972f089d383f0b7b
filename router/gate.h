// The small linear maps around the experts, always in float32: the router's
// gate, the gate of a shared expert, latent projections.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/executor.h"

namespace moe {

// Thread-safe after construction.
class Gate {
 public:
  // weights: [outputs, d_model]; bias: [outputs] or empty. Both are copied.
  Gate(ConstMatrix weights, absl::Span<const float> bias);

  int64_t outputs() const { return weights_.rows(); }
  int64_t d_model() const { return weights_.cols(); }
  int64_t weights_bytes() const {
    return (memory_.size() + bias_.size()) * int64_t{sizeof(float)};
  }

  // logits = hidden_states * weights^T + bias.
  // hidden_states: [tokens, d_model]; logits: [tokens, outputs], overwritten.
  void Forward(ConstMatrix hidden_states, Executor& executor,
               Matrix logits) const;

 private:
  AlignedBuffer<float> memory_;
  AlignedBuffer<float> bias_;
  ConstMatrix weights_;
};

}  // namespace moe

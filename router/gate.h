// The small linear maps around the experts, always in float32: the router's
// gate, the gate of a shared expert, latent projections.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// Thread-safe after construction.
class Gate {
 public:
  // weights: [outputs, d_model]; bias: [outputs] or empty. Both are copied.
  Gate(ConstMatrix weights, absl::Span<const float> bias);

  int64_t outputs() const { return weights_.layout.n; }
  int64_t d_model() const { return weights_.layout.k; }
  int64_t weights_bytes() const {
    return weights_.layout.bytes() + bias_.size() * int64_t{sizeof(float)};
  }

  // logits = hidden_states * weights^T + bias. The bytes of a row depend on
  // that row alone: the choice of experts does not change with its batch.
  //
  // hidden_states: [tokens, d_model]; logits: [tokens, outputs], overwritten.
  void Forward(ConstMatrix hidden_states, ExpertWorkspace& workspace,
               Matrix logits) const;

 private:
  AlignedBuffer<uint8_t> memory_;
  AlignedBuffer<float> bias_;  // padded as the panels are
  PackedMatrix weights_;
};

}  // namespace moe

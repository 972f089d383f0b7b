// The small linear maps that stand beside the experts, always in float32.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// Thread-safe after construction.
class Linear {
 public:
  // weights: [outputs, inputs]; bias: [outputs] or empty. Both are copied.
  Linear(ConstMatrix weights, absl::Span<const float> bias);

  int64_t outputs() const { return weights_.layout.n; }
  int64_t inputs() const { return weights_.layout.k; }
  int64_t weights_bytes() const {
    return weights_.layout.bytes() + bias_.size() * int64_t{sizeof(float)};
  }

  // out = x * weights^T + bias. The bytes of a row depend on that row alone,
  // whatever it shares its batch with.
  //
  // x:   [rows, inputs]
  // out: [rows, outputs], overwritten
  void Forward(ConstMatrix x, ExpertWorkspace& workspace, Matrix out) const;

 private:
  AlignedBuffer<uint8_t> memory_;
  AlignedBuffer<float> bias_;  // padded as the panels are
  PackedMatrix weights_;
};

}  // namespace moe

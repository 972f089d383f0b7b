#include "router/gate.h"

#include <algorithm>

#include "experts/matmul_onednn.h"

namespace moe {
namespace {

// Rows per task: enough to use the caches, few enough to keep every thread
// busy at moderate batch sizes.
constexpr int64_t kRowsPerTask = 64;

}  // namespace

Gate::Gate(ConstMatrix weights, absl::Span<const float> bias)
    : memory_(weights.rows() * weights.cols()),
      bias_(static_cast<int64_t>(bias.size())),
      weights_(memory_.data(), weights.rows(), weights.cols()) {
  for (int64_t row = 0; row < weights.rows(); ++row) {
    std::copy_n(weights.Row(row), weights.cols(),
                memory_.data() + row * weights.cols());
  }
  std::copy(bias.begin(), bias.end(), bias_.data());
}

void Gate::Forward(ConstMatrix hidden_states, Executor& executor,
                   Matrix logits) const {
  const int64_t tokens = hidden_states.rows();
  executor.ParallelFor(
      (tokens + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
        const int64_t first = task * kRowsPerTask;
        const int64_t count = std::min(kRowsPerTask, tokens - first);
        MatmulTransposed(hidden_states.Rows(first, count), weights_,
                         logits.Rows(first, count));
        if (bias_.size() == 0) return;
        for (int64_t row = first; row < first + count; ++row) {
          float* z = logits.Row(row);
          for (int64_t e = 0; e < outputs(); ++e) z[e] += bias_[e];
        }
      });
}

}  // namespace moe

#include "router/combine.h"

#include <algorithm>

namespace moe {

void Combine(const Dispatch& dispatch, ConstMatrix weights,
             WeightPlacement placement, ConstMatrix expert_outputs,
             ConstMatrix hidden_states, int64_t first, int64_t count,
             Matrix out) {
  const int64_t d_model = out.cols();
  const int64_t top_k = weights.cols();
  for (int64_t t = first; t < first + count; ++t) {
    float* sum = out.Row(t);
    std::fill_n(sum, d_model, 0.0F);
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t assignment =
          dispatch.assignments()[static_cast<size_t>(t * top_k + j)];
      if (assignment == kSkipped) continue;
      const bool identity = assignment == kUnchanged;
      const float* y =
          identity ? hidden_states.Row(t) : expert_outputs.Row(assignment);
      const float weight = placement == WeightPlacement::kInput && !identity
                               ? 1.0F
                               : weights.Row(t)[j];
      for (int64_t c = 0; c < d_model; ++c) sum[c] += weight * y[c];
    }
  }
}

}  // namespace moe

// The weighted sum of expert outputs, back in token order.
//
// Thread-safe: a pure function on disjoint outputs.

#pragma once

#include "experts/base/matrix_view.h"
#include "router/dispatch.h"

namespace moe {

// out[t] = sum over j = 0 .. top_k-1, in that order, of weight * y, where y is
// the expert's output for the pair (t, j), hidden_states[t] for an identity
// expert, and nothing for a skipped one. The order is that of the choice, never
// that of the computation: a row has the same bits whoever shares its batch.
//
// expert_outputs: [assignments, d_model]
// hidden_states:  [tokens, d_model]
// weights:        [tokens, top_k]; taken as 1 where placement is kInput, except
//                 for identity experts (w * x either way).
// out:            rows [first, first + count) of [tokens, d_model] are written.
void Combine(const Dispatch& dispatch, ConstMatrix weights,
             WeightPlacement placement, ConstMatrix expert_outputs,
             ConstMatrix hidden_states, int64_t first, int64_t count,
             Matrix out);

}  // namespace moe

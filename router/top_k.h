// From router logits to expert ids and routing weights.
//
// Thread-safe: pure functions.

#pragma once

#include "absl/types/span.h"
#include "experts/base/matrix_view.h"
#include "router/routing_rule.h"

namespace moe {

// Chooses the experts of each token and their routing weights.
//
// bias:     [num_experts] added to the scores to choose by, never to the
//           weights; or empty
// logits:   [tokens, num_experts]
// ids:      [tokens, top_k], best first by selection score; equal scores go to
//           the lower id. Always distinct and valid: a NaN score counts as
//           -inf.
// weights:  [tokens, top_k], in the order of ids. NaN where a logit of the row
//           is NaN and the rule depends on it.
// Requires: rule.Validate() is OK; the shapes agree.
// Cost:     O(tokens * num_experts * top_k) at worst; allocates nothing.
void TopK(const RoutingRule& rule, absl::Span<const float> bias,
          ConstMatrix logits, MatrixView<int32_t> ids, Matrix weights);

}  // namespace moe

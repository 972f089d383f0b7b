// A slow reference of a whole MoE layer, in double precision and with nothing
// of router/ in it: plain loops over plain vectors, one token at a time.
//
// Every number carries a bound on how far a float32 computation of it may be
// off, propagated from operation to operation: tolerances come from the sizes
// of the operands, never from trial.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/stored_expert.h"
#include "gtest/gtest.h"

namespace moe {

// A value, and how far float32 arithmetic may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

// The weights of one expert, by Projection: row-major [d_ff, d_model] or, for
// down_proj, [d_model, d_ff].
struct ReferenceExpert {
  std::vector<float> weights[kNumProjections];
  std::vector<float> biases[kNumProjections];  // empty without biases
};

// Random weights and biases; the same for the same seed.
ReferenceExpert RandomExpert(const ExpertSpec& spec, uint32_t seed);

// y = expert(x).
//
// inner_epsilon: how far, relatively, what goes to down_proj may be rounded;
//                0 = kept as float32.
std::vector<Bounded> RunReferenceExpert(const ExpertSpec& spec,
                                        const ReferenceExpert& expert,
                                        absl::Span<const Bounded> x,
                                        double inner_epsilon = 0.0);

// The experts as a shard takes them; they point into `experts`.
std::vector<StoredExpert> StoreExperts(
    const ExpertSpec& spec, absl::Span<const ReferenceExpert> experts);

// A layer: routed experts, identity experts after them, and a shared one.
struct ReferenceMoe {
  enum class Score { kSoftmax, kSigmoid };

  ExpertSpec spec;
  std::vector<ReferenceExpert> experts;
  int64_t num_identity_experts = 0;

  std::vector<float> gate;  // [num_experts, d_model]
  int64_t top_k = 1;
  Score score = Score::kSoftmax;
  bool renormalize = false;      // weights are divided by their sum
  float scale = 1.0F;            // and multiplied by this
  bool weight_on_input = false;  // expert(w * x) instead of w * expert(x)

  std::optional<ExpertSpec> shared_spec;
  ReferenceExpert shared;
  std::vector<float> shared_gate;  // [d_model], or empty

  int64_t num_experts() const {
    return static_cast<int64_t>(experts.size()) + num_identity_experts;
  }
};

// Experts and weights of each token.
struct ReferenceRouting {
  int64_t top_k = 0;
  std::vector<int32_t> ids;      // [tokens, top_k], -1 = skipped
  std::vector<Bounded> weights;  // [tokens, top_k]
};

// hidden_states: [tokens, d_model]. Ids are sure only if the logits have no
// error in float32: see GridFloats.
ReferenceRouting RunReferenceRouter(const ReferenceMoe& moe,
                                    ConstMatrix hidden_states);
// Returns [tokens, d_model].
std::vector<Bounded> RunReferenceMoe(const ReferenceMoe& moe,
                                     const ReferenceRouting& routing,
                                     ConstMatrix hidden_states);

// Uniform in [-limit, limit), the same for the same seed.
std::vector<float> RandomFloats(int64_t size, float limit, uint32_t seed);
// As RandomFloats, but multiples of limit / 8, with a power of two as limit:
// sums of fewer than 2^16 products of two such numbers are exact in float32, in
// whatever order.
std::vector<float> GridFloats(int64_t size, float limit, uint32_t seed);

// Is each element of `got` [rows, cols] within the bound of its counterpart in
// `want` [rows * cols]? Tells the worst index, got and want otherwise.
::testing::AssertionResult IsWithin(ConstMatrix got,
                                    absl::Span<const Bounded> want);

}  // namespace moe

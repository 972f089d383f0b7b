// How a layer chooses experts, described by data.
//
//   z = gate logits                                  [num_experts]
//   score = score_function(z)
//   selection = score + selection_bias, experts outside the best groups masked
//   to -inf ids = the top_k largest selections, ties to the lower id weight =
//   weight_source(ids), renormalised, times scale
//
// Thread-safe: plain values.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace moe {

inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxTopK = 32;

enum class ScoreFunction : uint8_t {
  kLogits,   // z
  kSoftmax,  // over all experts
  kSigmoid,
  kSqrtSoftplus,  // sqrt(log(1 + exp(z)))
  kSparseMixer,   // PhiMoE: two picks by argmax z, see
                  // RoutingRule::sparse_mixer_epsilon
};

enum class WeightSource : uint8_t {
  kScore,            // the score (without selection bias) of the chosen
  kSoftmaxOfChosen,  // softmax over the top_k chosen logits
  kSigmoidOfChosen,  // sigmoid of the chosen logits
};

enum class GroupScore : uint8_t { kMax, kSumOfTopTwo };

enum class Renormalize : uint8_t {
  kNone,
  kSum,    // w / max(sum w + renorm_epsilon, renorm_min)
  kPNorm,  // w / (sum |w|^p)^(1/p), p = renorm_p
};

// Where the routing weight acts.
enum class WeightPlacement : uint8_t { kOutput, kInput };

struct RoutingRule {
  int64_t num_experts = 0;  // all that can be chosen, identity experts included
  int64_t num_identity_experts =
      0;  // the last ones: their output is their input
  int64_t top_k = 0;

  ScoreFunction score = ScoreFunction::kSoftmax;
  std::vector<float> selection_bias;  // [num_experts], or empty

  int64_t num_groups = 1;  // divides num_experts; 1 = no grouping
  int64_t top_groups = 1;
  GroupScore group_score = GroupScore::kMax;

  WeightSource weight = WeightSource::kScore;
  Renormalize renormalize = Renormalize::kNone;
  float renorm_epsilon = 0.0F;
  float renorm_min = 0.0F;
  float renorm_p = 1.0F;
  float scale = 1.0F;
  WeightPlacement placement = WeightPlacement::kOutput;

  float sparse_mixer_epsilon = 0.0F;  // router_jitter_noise

  // Experts that own weights.
  int64_t num_ffn_experts() const { return num_experts - num_identity_experts; }

  // Errors: INVALID_ARGUMENT naming the first contradictory field.
  absl::Status Validate() const;
};

}  // namespace moe

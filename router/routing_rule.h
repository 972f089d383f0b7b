// How a layer chooses experts, described by data.
//
//   z         = gate logits                             [num_experts]
//   score     = score_function(z)                       [num_experts]
//   selection = score + selection bias (a learned parameter, or none);
//               -inf outside the best groups            [num_experts]
//   ids       = the top_k largest selections            [top_k]
//   weights   = weight_source(ids), renormalised, times scale   [top_k]
//
// Thread-safe: plain values.

#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace moe {

inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxTopK = 32;

enum class ScoreFunction : uint8_t {
  kLogits,   // z
  kSoftmax,  // over all experts
  kSigmoid,
  kSqrtSoftplus,  // sqrt(log(1 + exp(z)))
  kSparseMixer,   // PhiMoE: up to two picks by argmax z, each weighed by a
                  // softmax over the logits close to it
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
  // All that can be chosen; the last ones may be identity experts, whose output
  // is their input.
  int64_t num_experts = 0;
  int64_t num_identity_experts = 0;
  int64_t top_k = 0;

  ScoreFunction score = ScoreFunction::kSoftmax;
  // kSparseMixer: how close, relative to the size of the logits.
  float sparse_mixer_epsilon = 0.0F;

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

  // Experts that own weights.
  int64_t num_ffn_experts() const { return num_experts - num_identity_experts; }

  // Errors: INVALID_ARGUMENT naming the first field that contradicts another,
  // as in "top_k: want 1 to 8, got 9".
  absl::Status Validate() const;
};

}  // namespace moe

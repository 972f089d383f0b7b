// What a checkpoint holds: its FFN layers, the shapes, the routing rules, and
// the tensors that they are made of. Nothing is read but config.json and the
// list of tensors.
//
// Thread-safe: plain values and pure functions.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/expert_spec.h"
#include "experts/local_expert_shard.h"
#include "router/routing_rule.h"

namespace moe {

// A set of equal experts: the routed ones of a layer, its shared one, or the
// one FFN of a dense layer.
struct ExpertSetSpec {
  ExpertSpec expert;
  int64_t num_experts = 1;
  // Tensor names by Projection; "{E}" stands for the number of the expert.
  // gate_proj is unused by classic experts, biases by experts without.
  std::array<std::string, kNumProjections> weights;
  std::array<std::string, kNumProjections> biases;
};

struct LayerSpec {
  int index = 0;
  // Routed layers only.
  std::optional<RoutingRule> rule;
  std::string gate_weight;  // [num_experts, d_model]

  ExpertSetSpec experts;
  std::optional<ExpertSetSpec> shared_expert;

  int64_t d_model() const { return experts.expert.d_model; }
  // Learned parameters, router included.
  int64_t parameters() const;
};

struct ModelSpec {
  std::string family;  // model_type of config.json
  int64_t d_model = 0;
  std::vector<LayerSpec> layers;  // ascending index
};

// Recognises the model by its config.json.
//
// Errors: UNIMPLEMENTED for a model type that is not supported, naming those
// that are; INVALID_ARGUMENT or NOT_FOUND naming a config key or tensor that is
// missing or contradicts another, wanted and got.
absl::StatusOr<ModelSpec> DescribeModel(const Checkpoint& checkpoint);

}  // namespace moe

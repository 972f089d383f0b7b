// The supported model families: one function each, from config.json to the
// layers and the names of their tensors.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "router/model_spec.h"

namespace moe {
namespace {

// Names of the three projections below a prefix, as in "w1", "w3", "w2".
std::array<std::string, kNumProjections> Names(absl::string_view prefix,
                                               absl::string_view gate,
                                               absl::string_view up,
                                               absl::string_view down,
                                               absl::string_view suffix) {
  return {absl::StrCat(prefix, gate, suffix), absl::StrCat(prefix, up, suffix),
          absl::StrCat(prefix, down, suffix)};
}

// A gated expert with the activation that the config names.
absl::StatusOr<ExpertSpec> GatedExpert(const Config& config, int64_t d_model,
                                       int64_t d_ff) {
  MOE_ASSIGN_OR_RETURN(const std::string name,
                       config.StringOr("hidden_act", "silu"));
  const absl::StatusOr<Activation> activation = ParseActivation(name);
  if (!activation.ok()) {
    return absl::UnimplementedError(absl::StrCat(
        "config.json: hidden_act: ", activation.status().message()));
  }
  ExpertSpec spec;
  spec.d_model = d_model;
  spec.d_ff = d_ff;
  spec.activation.activation = *activation;
  return spec;
}

// A dense FFN with gate_proj, up_proj and down_proj.
absl::StatusOr<LayerSpec> DenseGatedLayer(const Config& config, int64_t index,
                                          int64_t d_model) {
  LayerSpec layer;
  layer.index = static_cast<int>(index);
  MOE_ASSIGN_OR_RETURN(const int64_t d_ff, config.Int("intermediate_size", 1));
  MOE_ASSIGN_OR_RETURN(layer.experts.expert,
                       GatedExpert(config, d_model, d_ff));
  const std::string prefix = absl::StrCat("model.layers.", index, ".mlp.");
  layer.experts.weights =
      Names(prefix, "gate_proj", "up_proj", "down_proj", ".weight");
  layer.experts.biases =
      Names(prefix, "gate_proj", "up_proj", "down_proj", ".bias");
  return layer;
}

absl::StatusOr<ModelSpec> DescribeLlama(const Config& config) {
  ModelSpec model;
  MOE_ASSIGN_OR_RETURN(model.d_model, config.Int("hidden_size", 1));
  MOE_ASSIGN_OR_RETURN(const int64_t layers,
                       config.Int("num_hidden_layers", 1));
  MOE_ASSIGN_OR_RETURN(const bool bias, config.BoolOr("mlp_bias", false));
  for (int64_t index = 0; index < layers; ++index) {
    MOE_ASSIGN_OR_RETURN(LayerSpec layer,
                         DenseGatedLayer(config, index, model.d_model));
    layer.experts.expert.has_bias = bias;
    model.layers.push_back(std::move(layer));
  }
  return model;
}

absl::StatusOr<ModelSpec> DescribeMixtral(const Config& config) {
  ModelSpec model;
  MOE_ASSIGN_OR_RETURN(model.d_model, config.Int("hidden_size", 1));
  MOE_ASSIGN_OR_RETURN(const int64_t layers,
                       config.Int("num_hidden_layers", 1));
  MOE_ASSIGN_OR_RETURN(const int64_t d_ff, config.Int("intermediate_size", 1));
  RoutingRule rule;
  MOE_ASSIGN_OR_RETURN(rule.num_experts, config.Int("num_local_experts", 1));
  MOE_ASSIGN_OR_RETURN(rule.top_k, config.Int("num_experts_per_tok", 1));
  rule.renormalize = Renormalize::kSum;
  for (int64_t index = 0; index < layers; ++index) {
    LayerSpec layer;
    layer.index = static_cast<int>(index);
    layer.rule = rule;
    const std::string prefix =
        absl::StrCat("model.layers.", index, ".block_sparse_moe.");
    layer.gate_weight = prefix + "gate.weight";
    MOE_ASSIGN_OR_RETURN(layer.experts.expert,
                         GatedExpert(config, model.d_model, d_ff));
    layer.experts.num_experts = rule.num_experts;
    layer.experts.weights =
        Names(prefix + "experts.{E}.", "w1", "w3", "w2", ".weight");
    model.layers.push_back(std::move(layer));
  }
  return model;
}

// The Qwen line and OLMoE: softmax routing, renormalised if norm_topk_prob.
absl::StatusOr<ModelSpec> DescribeQwenMoe(const Config& config,
                                          absl::string_view d_ff_key) {
  ModelSpec model;
  MOE_ASSIGN_OR_RETURN(model.d_model, config.Int("hidden_size", 1));
  MOE_ASSIGN_OR_RETURN(const int64_t layers,
                       config.Int("num_hidden_layers", 1));
  MOE_ASSIGN_OR_RETURN(const int64_t d_ff, config.Int(d_ff_key, 1));
  RoutingRule rule;
  MOE_ASSIGN_OR_RETURN(rule.num_experts, config.Int("num_experts", 1));
  MOE_ASSIGN_OR_RETURN(rule.top_k, config.Int("num_experts_per_tok", 1));
  MOE_ASSIGN_OR_RETURN(const bool renormalize,
                       config.BoolOr("norm_topk_prob", false));
  if (renormalize) rule.renormalize = Renormalize::kSum;
  MOE_ASSIGN_OR_RETURN(const int64_t sparse_step,
                       config.IntOr("decoder_sparse_step", 1, 1));
  MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> mlp_only,
                       config.Ints("mlp_only_layers"));
  for (int64_t index = 0; index < layers; ++index) {
    LayerSpec layer;
    if ((index + 1) % sparse_step != 0 ||
        std::count(mlp_only.begin(), mlp_only.end(), index) > 0) {
      MOE_ASSIGN_OR_RETURN(layer,
                           DenseGatedLayer(config, index, model.d_model));
    } else {
      layer.index = static_cast<int>(index);
      layer.rule = rule;
      const std::string prefix = absl::StrCat("model.layers.", index, ".mlp.");
      layer.gate_weight = prefix + "gate.weight";
      MOE_ASSIGN_OR_RETURN(layer.experts.expert,
                           GatedExpert(config, model.d_model, d_ff));
      layer.experts.num_experts = rule.num_experts;
      layer.experts.weights = Names(prefix + "experts.{E}.", "gate_proj",
                                    "up_proj", "down_proj", ".weight");
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

struct Family {
  absl::string_view model_type;
  absl::StatusOr<ModelSpec> (*describe)(const Config& config);
};

constexpr Family kFamilies[] = {
    {"llama", DescribeLlama},
    {"mixtral", DescribeMixtral},
    {"olmoe",
     [](const Config& config) {
       return DescribeQwenMoe(config, "intermediate_size");
     }},
    {"qwen3_moe",
     [](const Config& config) {
       return DescribeQwenMoe(config, "moe_intermediate_size");
     }},
};

}  // namespace

int64_t LayerSpec::parameters() const {
  int64_t sum = experts.num_experts * experts.expert.parameters();
  if (rule.has_value()) sum += rule->num_experts * d_model();
  if (shared_expert.has_value()) {
    sum += shared_expert->num_experts * shared_expert->expert.parameters();
  }
  return sum;
}

absl::StatusOr<ModelSpec> DescribeModel(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.config();
  MOE_ASSIGN_OR_RETURN(const std::string model_type,
                       config.String("model_type"));
  for (const Family& family : kFamilies) {
    if (family.model_type != model_type) continue;
    MOE_ASSIGN_OR_RETURN(ModelSpec model, family.describe(config));
    model.family = model_type;
    for (const LayerSpec& layer : model.layers) {
      if (!layer.rule.has_value()) continue;
      if (absl::Status status = layer.rule->Validate(); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("config.json: layer ", layer.index,
                                         ": ", status.message()));
      }
    }
    return model;
  }
  return absl::UnimplementedError(
      absl::StrCat("config.json: model_type: want one of ",
                   absl::StrJoin(kFamilies, ", ",
                                 [](std::string* out, const Family& family) {
                                   absl::StrAppend(out, family.model_type);
                                 }),
                   "; got \"", model_type, "\""));
}

}  // namespace moe

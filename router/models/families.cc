// The families of models: layouts, rules, and the table that joins them.

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "router/models/family.h"
#include "router/models/layouts.h"

namespace moe {
namespace {

// ---- Keys -----------------------------------------------------------------

constexpr RuleKey Shape(absl::string_view key) {
  return {.key = key, .use = KeyUse::kShape, .otherwise = {}};
}
// Without a value the key must be there, or stands for nothing.
constexpr RuleKey Rule(absl::string_view key, KeyValue otherwise = {}) {
  return {.key = key, .use = KeyUse::kRule, .otherwise = otherwise};
}
// Where the class has the numbers of one published model for its default.
constexpr RuleKey Needed(absl::string_view key) {
  return {.key = key, .use = KeyUse::kNeeded, .otherwise = {}};
}
constexpr RuleKey Held(absl::string_view key, KeyValue value) {
  return {.key = key, .use = KeyUse::kHeld, .otherwise = value};
}
constexpr KeyValue Name(absl::string_view name) { return name; }
constexpr KeyValue Count(int64_t count) { return count; }

constexpr RuleKey kHiddenSize = Shape("hidden_size");
constexpr RuleKey kNumHiddenLayers = Shape("num_hidden_layers");
constexpr RuleKey kIntermediateSize = Shape("intermediate_size");
constexpr RuleKey kMoeIntermediateSize = Shape("moe_intermediate_size");
constexpr RuleKey kHiddenAct = Rule("hidden_act", Name("silu"));
constexpr RuleKey kSigmoidScores = Held("scoring_func", Name("sigmoid"));
constexpr RuleKey kNoAuxTc = Held("topk_method", Name("noaux_tc"));
// The transformers library follows first_k_dense_replace alone; the files'
// authors follow this, too.
constexpr RuleKey kMoeLayerFreq = Rule("moe_layer_freq", Count(1));

constexpr RuleKey kMixtralKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_local_experts=num_experts"),
    Rule("num_experts_per_tok", Count(2)),
};
constexpr RuleKey kMiniMaxM2Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_local_experts=num_experts"),
    Rule("num_experts_per_tok", Count(8)),
    kSigmoidScores,
    Held("use_routing_bias", true),
    Held("shared_intermediate_size", Count(0)),
};
constexpr RuleKey kPhiMoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_local_experts"),
    Held("num_experts_per_tok", Count(2)),
    Rule("router_jitter_noise", 0.01),
};
constexpr RuleKey kQwen3MoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("norm_topk_prob", false),
    Rule("decoder_sparse_step", Count(1)),
    Rule("mlp_only_layers"),
};
constexpr RuleKey kQwen2MoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    Shape("shared_expert_intermediate_size"),
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(4)),
    Rule("norm_topk_prob", false),
    Rule("decoder_sparse_step", Count(1)),
    Rule("mlp_only_layers"),
};
constexpr RuleKey kQwen3NextKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    Shape("shared_expert_intermediate_size"),
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(10)),
    Rule("norm_topk_prob", true),
    Rule("decoder_sparse_step", Count(1)),
    Rule("mlp_only_layers"),
};
constexpr RuleKey kQwen35MoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kMoeIntermediateSize,
    Shape("shared_expert_intermediate_size"),
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
};
constexpr RuleKey kQwen3VlMoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(4)),
    Rule("decoder_sparse_step", Count(1)),
    Rule("mlp_only_layers"),
};
constexpr RuleKey kOlmoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("norm_topk_prob", false),
};
constexpr RuleKey kDeepSeekV2Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_experts"),
    Rule("num_experts_per_tok"),
    Rule("n_shared_experts", Count(2)),
    Rule("routed_scaling_factor", 1.0),
    Rule("n_group"),
    Rule("topk_group"),
    Rule("topk_method", Name("greedy")),
    // The authors' own implementation follows it, the library's does not.
    Held("norm_topk_prob", false),
    Held("scoring_func", Name("softmax")),
    Held("mlp_bias", false),
    Rule("first_k_dense_replace", Count(0)),
    kMoeLayerFreq,
};
constexpr RuleKey kDeepSeekV3Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("n_shared_experts", Count(1)),
    Rule("routed_scaling_factor", 2.5),
    Needed("n_group"),
    Needed("topk_group"),
    Rule("norm_topk_prob", true),
    kSigmoidScores,
    kNoAuxTc,
    Rule("first_k_dense_replace", Count(3)),
    kMoeLayerFreq,
};
constexpr RuleKey kDeepSeekV32Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("n_shared_experts", Count(1)),
    Rule("routed_scaling_factor", 2.5),
    Needed("n_group"),
    Needed("topk_group"),
    Rule("norm_topk_prob", true),
    kSigmoidScores,
    kNoAuxTc,
    Held("mlp_bias", false),
    Rule("mlp_layer_types"),
    Rule("first_k_dense_replace", Count(3)),
    kMoeLayerFreq,
};
constexpr RuleKey kGlmMoeDsaKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("n_shared_experts", Count(1)),
    Rule("routed_scaling_factor", 2.5),
    Rule("n_group", Count(1)),
    Rule("topk_group", Count(1)),
    Rule("norm_topk_prob", true),
    kSigmoidScores,
    kNoAuxTc,
    Held("mlp_bias", false),
    Rule("mlp_layer_types"),
    Rule("first_k_dense_replace", Count(3)),
    kMoeLayerFreq,
};
constexpr RuleKey kGlm4MoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(8)),
    Rule("n_shared_experts", Count(1)),
    Rule("routed_scaling_factor", 1.0),
    Rule("n_group", Count(1)),
    Rule("topk_group", Count(1)),
    Rule("norm_topk_prob", true),
    kSigmoidScores,
    kNoAuxTc,
    Rule("first_k_dense_replace", Count(1)),
    kMoeLayerFreq,
};
constexpr RuleKey kDots1Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok"),
    Rule("n_shared_experts"),
    Rule("routed_scaling_factor", 1.0),
    Rule("n_group", Count(1)),
    Rule("topk_group", Count(1)),
    Rule("norm_topk_prob", false),
    kSigmoidScores,
    kNoAuxTc,
    Rule("first_k_dense_replace", Count(0)),
    kMoeLayerFreq,
};
constexpr RuleKey kBailingMoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("num_experts"),
    Rule("num_experts_per_tok", Count(2)),
    Rule("num_shared_experts", Count(0)),
    Rule("norm_topk_prob", true),
    Rule("use_bias", true),
    Rule("first_k_dense_replace", Count(0)),
    kMoeLayerFreq,
};
constexpr RuleKey kBailingMoeV2Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("num_experts"),
    Rule("num_experts_per_tok", Count(2)),
    Rule("num_shared_experts", Count(0)),
    Rule("routed_scaling_factor", 2.5),
    Needed("n_group"),
    Needed("topk_group"),
    // Not followed: weights are always divided by their sum.
    Held("norm_topk_prob", true),
    Held("score_function", Name("sigmoid")),
    Held("moe_router_enable_expert_bias", true),
    Rule("first_k_dense_replace", Count(0)),
    kMoeLayerFreq,
};
constexpr RuleKey kNemotronHKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    Rule("hybrid_override_pattern"),
    Rule("layers_block_type=layer_types"),
    kIntermediateSize,
    kMoeIntermediateSize,
    Shape("moe_shared_expert_intermediate_size"),
    Rule("moe_latent_size"),
    Rule("mlp_hidden_act", Name("relu2")),
    Rule("mlp_bias", false),
    Shape("n_routed_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(2)),
    Rule("routed_scaling_factor", 1.0),
    Rule("n_group", Count(1)),
    Rule("topk_group", Count(1)),
    Rule("norm_topk_prob", true),
};
constexpr RuleKey kLfm2MoeKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    Shape("num_experts"),
    Rule("num_experts_per_tok", Count(4)),
    Rule("routed_scaling_factor", 1.0),
    Rule("norm_topk_prob", true),
    Rule("use_expert_bias", true),
    Rule("num_dense_layers", Count(2)),
};
constexpr RuleKey kErnieKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("moe_num_experts=num_experts"),
    Rule("moe_k=num_experts_per_tok", Count(6)),
    Rule("moe_norm_min", 1e-12),
    Rule("moe_num_shared_experts", Count(2)),
    Rule("moe_layer_interval", Count(1)),
    Rule("moe_layer_start_index", Count(1)),
    Rule("moe_layer_end_index", Count(27)),
    Rule("use_bias", false),
    Held("moe_gate", Name("topk")),
    Held("moe_use_aux_free", true),
    Held("moe_use_hard_gate", false),
    Held("multimodel_experts", false),
};
constexpr RuleKey kHunYuanKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kMoeIntermediateSize,
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("moe_topk=num_experts_per_tok", Count(1)),
    Rule("num_shared_expert", Count(1)),
    Held("norm_topk_prob", true),
    Held("routed_scaling_factor", 1.0),
    Held("mlp_bias", false),
    Held("moe_drop_tokens", false),
};
constexpr RuleKey kLongcatKeys[] = {
    kHiddenSize,
    Shape("num_layers"),
    Shape("expert_ffn_hidden_size=moe_intermediate_size"),
    kHiddenAct,
    Shape("n_routed_experts=num_local_experts"),
    {.key = "zero_expert_num",
     .use = KeyUse::kRule,
     .otherwise = Count(256),
     .nullable = true},
    Rule("moe_topk=num_experts_per_tok", Count(12)),
    Rule("routed_scaling_factor", 6.0),
    Held("zero_expert_type", Name("identity")),
    // Whether a bias of the classifier counts, its readers disagree; no
    // published model has one.
    Held("router_bias", false),
};
constexpr RuleKey kGraniteKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_local_experts"),
    Rule("num_experts_per_tok", Count(2)),
    Rule("shared_intermediate_size", Count(0)),
};
constexpr RuleKey kGptOssKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    // Not followed: there is one activation.
    Held("hidden_act", Name("silu")),
    Rule("swiglu_alpha", 1.702),
    Rule("swiglu_limit", 7.0),
    Shape("num_local_experts=num_experts"),
    Rule("num_experts_per_tok=experts_per_token", Count(4)),
};
constexpr RuleKey kLlama4Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Shape("intermediate_size_mlp"),
    kHiddenAct,
    Shape("num_local_experts"),
    Rule("num_experts_per_tok", Count(1)),
    Rule("moe_layers"),
    Rule("interleave_moe_layer_step", Count(1)),
};
constexpr RuleKey kDbrxKeys[] = {
    Shape("d_model=hidden_size"),
    Shape("n_layers=num_hidden_layers"),
    Shape("ffn_config.ffn_hidden_size"),
    Shape("ffn_config.moe_num_experts"),
    Rule("ffn_config.moe_top_k", Count(1)),
    Rule("ffn_config.ffn_act_fn.name", Name("silu")),
    // Null: weights are left as they are.
    {.key = "ffn_config.moe_normalize_expert_weights",
     .use = KeyUse::kRule,
     .otherwise = 1.0,
     .nullable = true},
};
constexpr RuleKey kJambaKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
    Shape("num_experts=num_local_experts"),
    Rule("num_experts_per_tok", Count(2)),
    Rule("expert_layer_period", Count(2)),
    Rule("expert_layer_offset", Count(1)),
};
constexpr RuleKey kT5Keys[] = {
    Shape("d_model=hidden_size"),
    Shape("num_layers=num_hidden_layers"),
    Shape("num_decoder_layers"),
    Shape("d_ff"),
    Rule("feed_forward_proj", Name("relu")),
    Rule("dense_act_fn", Name("relu")),
};
constexpr RuleKey kSwitchKeys[] = {
    Shape("d_model=hidden_size"),
    Shape("num_layers=num_hidden_layers"),
    Shape("num_decoder_layers"),
    Shape("d_ff"),
    Rule("dense_act_fn", Name("relu")),
    Held("feed_forward_proj", Name("relu")),
    Held("is_gated_act", false),
    Shape("num_experts"),
    Held("num_selected_experts", Count(1)),
    Rule("router_bias", false),
    Rule("encoder_sparse_step"),
    Rule("decoder_sparse_step"),
    Rule("num_sparse_encoder_layers", Count(3)),
    Rule("num_sparse_decoder_layers", Count(3)),
};
constexpr RuleKey kNllbMoeKeys[] = {
    Shape("d_model=hidden_size"),
    Shape("encoder_layers=num_hidden_layers"),
    Shape("decoder_layers"),
    Shape("encoder_ffn_dim"),
    Shape("decoder_ffn_dim"),
    Rule("activation_function", Name("relu")),
    Shape("num_experts"),
    Held("second_expert_policy", Name("all")),
    Rule("moe_token_dropout", 0.2),
    Rule("router_bias", false),
    Rule("encoder_sparse_step", Count(4)),
    Rule("decoder_sparse_step", Count(4)),
};
constexpr RuleKey kLlamaKeys[] = {
    kHiddenSize, kNumHiddenLayers,        kIntermediateSize,
    kHiddenAct,  Rule("mlp_bias", false),
};
constexpr RuleKey kQwenKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
};
constexpr RuleKey kGemmaKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_activation", Name("gelu_pytorch_tanh")),
};
constexpr RuleKey kPhi3Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    kHiddenAct,
};
constexpr RuleKey kNemotronKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_act", Name("relu2")),
    Rule("mlp_bias", false),
};
constexpr RuleKey kPhiKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_act", Name("gelu_new")),
};
constexpr RuleKey kStarcoder2Keys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_act", Name("gelu_pytorch_tanh")),
    Rule("use_bias", true),
    Held("mlp_type", Name("default")),
};
constexpr RuleKey kGpt2Keys[] = {
    Shape("n_embd=hidden_size"),
    Shape("n_layer=num_hidden_layers"),
    Rule("n_inner"),
    Rule("activation_function", Name("gelu_new")),
};
constexpr RuleKey kGptNeoXKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_act", Name("gelu")),
};
constexpr RuleKey kFalconKeys[] = {
    Shape("hidden_size=n_embed"), Shape("num_hidden_layers=n_layer"),
    Shape("ffn_hidden_size"),     Rule("activation", Name("gelu")),
    Rule("bias", false),
};
constexpr RuleKey kBloomKeys[] = {
    Shape("hidden_size=n_embed"),
    Shape("n_layer=num_hidden_layers"),
};
constexpr RuleKey kBertKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    kIntermediateSize,
    Rule("hidden_act", Name("gelu")),
};
constexpr RuleKey kOptKeys[] = {
    kHiddenSize,
    kNumHiddenLayers,
    Shape("ffn_dim"),
    Rule("activation_function", Name("relu")),
    Rule("enable_bias", true),
};

// ---- Routing rules --------------------------------------------------------

// p = softmax(z); the top_k largest p, as they are.
constexpr RoutingRule kSoftmax = {.score = ScoreFunction::kSoftmax};
// The same, divided by their sum.
constexpr RoutingRule kSoftmaxRenormalized = {.score = ScoreFunction::kSoftmax,
                                              .renormalize = Renormalize::kSum};
// The top_k largest z; a softmax over those alone.
constexpr RoutingRule kSoftmaxOfChosen = {
    .score = ScoreFunction::kLogits, .weight = WeightSource::kSoftmaxOfChosen};
// s = sigmoid(z); groups by the sum of their two best.
constexpr RoutingRule kSigmoid = {.score = ScoreFunction::kSigmoid,
                                  .group_score = GroupScore::kSumOfTopTwo,
                                  .renormalize = Renormalize::kSum,
                                  .renorm_epsilon = 1e-20F};

// ---- What keys and data can't say -----------------------------------------

// Groups only if topk_method asks for them.
absl::Status DeepSeekV2Rule(const FamilyConfig& config, RoutingRule& rule) {
  constexpr char kMethod[] = "topk_method";
  MOE_ASSIGN_OR_RETURN(const std::string method, config.String(kMethod));
  if (method == "group_limited_greedy") {
    MOE_RETURN_IF_ERROR(config.Int("n_group").status());
    return config.Int("topk_group").status();
  }
  if (method != "greedy") {
    return absl::UnimplementedError(
        config
            .Error(kMethod, "\"greedy\" or \"group_limited_greedy\"",
                   absl::StrCat("\"", method, "\""))
            .message());
  }
  rule.num_groups = 1;
  rule.top_groups = 1;
  return absl::OkStatus();
}

// A single weight is left as it is.
absl::Status BailingV2Rule(const FamilyConfig& /*config*/, RoutingRule& rule) {
  if (rule.top_k == 1) rule.renormalize = Renormalize::kNone;
  return absl::OkStatus();
}

absl::Status PhiMoeRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_ASSIGN_OR_RETURN(const double epsilon,
                       config.Double("router_jitter_noise"));
  rule.sparse_mixer_epsilon = static_cast<float>(epsilon);
  return absl::OkStatus();
}

absl::Status ErnieRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_ASSIGN_OR_RETURN(const double minimum, config.Double("moe_norm_min"));
  rule.renorm_min = static_cast<float>(minimum);
  return absl::OkStatus();
}

absl::Status DbrxRule(const FamilyConfig& config, RoutingRule& rule) {
  constexpr char kNorm[] = "ffn_config.moe_normalize_expert_weights";
  MOE_ASSIGN_OR_RETURN(const std::optional<double> norm,
                       config.OptionalDouble(kNorm));
  // Larger powers would leave nothing in float32.
  if (norm && !(*norm > 0 && *norm <= 16)) {
    return config.Error(kNorm, "null or a number above 0, at most 16",
                        absl::StrCat(*norm));
  }
  rule.renormalize = norm ? Renormalize::kPNorm : Renormalize::kNone;
  rule.renorm_p = static_cast<float>(norm.value_or(1.0));
  return absl::OkStatus();
}

// Dropout of experts at inference, as a factor on every weight.
absl::Status NllbRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_ASSIGN_OR_RETURN(const double dropout,
                       config.Double("moe_token_dropout"));
  rule.scale = static_cast<float>(1.0 - dropout);
  return absl::OkStatus();
}

absl::Status GptOssExpert(const FamilyConfig& config, ExpertSpec& expert) {
  MOE_ASSIGN_OR_RETURN(const double limit, config.Double("swiglu_limit"));
  MOE_ASSIGN_OR_RETURN(const double alpha, config.Double("swiglu_alpha"));
  expert.activation.beta = static_cast<float>(alpha);
  expert.activation.limit = static_cast<float>(limit);
  expert.activation.up_offset = 1.0F;
  return absl::OkStatus();
}

// "relu", "gated-gelu": whether there is a gate, and the activation, which
// dense_act_fn may overrule.
absl::Status T5Expert(const FamilyConfig& config, ExpertSpec& expert) {
  constexpr char kProjection[] = "feed_forward_proj";
  MOE_ASSIGN_OR_RETURN(const std::string projection,
                       config.String(kProjection));
  absl::string_view name = projection;
  if (absl::ConsumePrefix(&name, "gated-") != expert.gated) {
    return config.Error(
        kProjection,
        expert.gated ? "\"gated-...\", as there is wi_0" : "no gate",
        absl::StrCat("\"", projection, "\""));
  }
  if (config.Has("dense_act_fn")) return absl::OkStatus();
  if (projection == "gated-gelu") name = "gelu_new";
  const absl::StatusOr<Activation> activation = ParseActivation(name);
  if (!activation.ok()) {
    return absl::UnimplementedError(
        config
            .Error(kProjection, "a known activation",
                   absl::StrCat("\"", projection, "\""))
            .message());
  }
  expert.activation.activation = *activation;
  return absl::OkStatus();
}

// ---- Parts that several families share ------------------------------------

// DeepSeek-V3 and its heirs.
constexpr RoutedBlock kDeepSeekV3 = {
    .num_experts = "n_routed_experts",
    .rule = kSigmoid,
    .renormalize = {"norm_topk_prob"},
    .scale = "routed_scaling_factor",
    .num_groups = "n_group",
    .top_groups = "topk_group",
    .gate = "mlp.gate.weight",
    .selection_bias = "mlp.gate.e_score_correction_bias",
    .layouts = {&kMlpExperts, &kMlpExpertsStacked},
    .shared = {.layouts = {&kSharedExperts}, .count = "n_shared_experts"},
};

// The Qwen line; its shared expert has a gate.
constexpr RoutedBlock kQwen = {
    .rule = kSoftmaxRenormalized,
    .renormalize = {"norm_topk_prob"},
    .gate = "mlp.gate.weight",
    .layouts = {&kMlpExperts, &kMlpExpertsStacked},
};
constexpr SharedBlock kQwenShared = {
    .layouts = {&kSharedExpert},
    .d_ff = "shared_expert_intermediate_size",
    .gate = "mlp.shared_expert_gate.weight",
};

constexpr RoutedBlock With(RoutedBlock block, const SharedBlock& shared) {
  block.shared = shared;
  return block;
}
constexpr RoutedBlock With(RoutedBlock block, RuleHook adjust) {
  block.adjust = adjust;
  return block;
}

// Mixtral and what is built like it.
constexpr RoutedBlock kMixtral = {
    .num_experts = "num_local_experts",
    .d_ff = "intermediate_size",
    .rule = kSoftmaxRenormalized,
    .gate = "block_sparse_moe.gate.weight|mlp.gate.weight",
    .layouts = {&kBlockExperts, &kMlpExpertsStacked},
};

constexpr RoutedBlock kGranite = {
    .num_experts = "num_local_experts",
    .d_ff = "intermediate_size",
    .rule = kSoftmaxOfChosen,
    .gate =
        "block_sparse_moe.router.layer.weight|"
        "block_sparse_moe.router.weight",
    .layouts = {&kGraniteExperts, &kGraniteNative},
    .shared = {.layouts = {&kGraniteShared},
               .d_ff = "shared_intermediate_size"},
};

// The sides of encoder-decoder models.
constexpr Family T5Side(absl::string_view part, absl::string_view layer,
                        absl::string_view num_layers) {
  return {
      .model_types = "t5",
      .classes = "T5",
      .keys = kT5Keys,
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = AllDense,
      .activation = "dense_act_fn",
      .adjust = T5Expert,
      .dense = {.layouts = {&kT5, &kT5Gated}, .d_ff = "d_ff"},
  };
}

constexpr Family SwitchSide(absl::string_view part, absl::string_view layer,
                            absl::string_view num_layers, LayerKindRule kind) {
  return {
      .model_types = "switch_transformers",
      .classes = "SwitchTransformers",
      .keys = kSwitchKeys,
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = kind,
      .activation = "dense_act_fn",
      .dense = {.layouts = {&kSwitch}, .d_ff = "d_ff"},
      .routed = {.top_k = "",
                 .d_ff = "d_ff",
                 .rule = {.top_k = 1, .score = ScoreFunction::kSoftmax},
                 .gate = "mlp.router.classifier.weight",
                 .gate_bias = {"router_bias"},
                 .layouts = {&kSwitchExperts}},
  };
}

constexpr Family NllbSide(absl::string_view part, absl::string_view layer,
                          absl::string_view num_layers, absl::string_view d_ff,
                          LayerKindRule kind) {
  return {
      .model_types = "nllb-moe",
      .classes = "NllbMoe",
      .keys = kNllbMoeKeys,
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = kind,
      .activation = "activation_function",
      .dense = {.layouts = {&kFfnFc}, .d_ff = d_ff, .bias = {"", true}},
      .routed = {.top_k = "",
                 .d_ff = d_ff,
                 .rule = {.top_k = 2,
                          .score = ScoreFunction::kSoftmax,
                          .renormalize = Renormalize::kSum,
                          .renorm_min = 0x1p-23F},
                 .adjust = NllbRule,
                 .gate = "ffn.router.classifier.weight",
                 .gate_bias = {"router_bias"},
                 .layouts = {&kNllbExperts},
                 .bias = {"", true}},
  };
}

constexpr DenseBlock kDenseMlp = {.layouts = {&kMlp}};

// ---- The table ------------------------------------------------------------

constexpr Family kFamilies[] = {
    // Mixtures.
    {
        .model_types = "mixtral|minimax",
        .classes = "Mixtral|MiniMax",
        .keys = kMixtralKeys,
        .routed = kMixtral,
    },
    {
        .model_types = "minimax_m2",
        .classes = "MiniMaxM2",
        .keys = kMiniMaxM2Keys,
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = {.score = ScoreFunction::kSigmoid,
                            .renormalize = Renormalize::kSum},
                   .gate = "block_sparse_moe.gate.weight|mlp.gate.weight",
                   .selection_bias = "block_sparse_moe.e_score_correction_bias|"
                                     "mlp.e_score_correction_bias",
                   .layouts = {&kBlockExperts, &kMlpExpertsStacked}},
    },
    {
        .model_types = "phimoe",
        .classes = "Phimoe",
        .keys = kPhiMoeKeys,
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = {.score = ScoreFunction::kSparseMixer},
                   .adjust = PhiMoeRule,
                   .gate = "block_sparse_moe.gate.weight|mlp.router.weight",
                   .layouts = {&kBlockExperts, &kMlpExpertsStacked}},
    },
    {
        .model_types = "qwen3_moe",
        .classes = "Qwen3Moe",
        .keys = kQwen3MoeKeys,
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = kQwen,
    },
    {
        .model_types = "qwen2_moe",
        .classes = "Qwen2Moe",
        .keys = kQwen2MoeKeys,
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = With(kQwen, kQwenShared),
    },
    {
        .model_types = "qwen3_next",
        .classes = "Qwen3Next",
        .keys = kQwen3NextKeys,
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = {.rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob"},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .shared = kQwenShared},
    },
    {
        .model_types = "qwen3_5_moe",
        .classes = "Qwen3_5Moe",
        .keys = kQwen35MoeKeys,
        .routed = {.rule = kSoftmaxRenormalized,
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExpertsStacked, &kMlpExperts},
                   .shared = kQwenShared},
    },
    {
        .model_types = "qwen3_vl_moe",
        .classes = "Qwen3VLMoe",
        .keys = kQwen3VlMoeKeys,
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = {.rule = kSoftmaxRenormalized,
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExpertsStacked, &kQwen3VlExperts,
                               &kMlpExperts}},
    },
    {
        .model_types = "olmoe",
        .classes = "Olmoe",
        .keys = kOlmoeKeys,
        .routed = {.d_ff = "intermediate_size",
                   .rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob"},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked}},
    },
    {
        .model_types = "deepseek_v2",
        .classes = "DeepseekV2",
        .keys = kDeepSeekV2Keys,
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = {.num_experts = "n_routed_experts",
                   .rule = kSoftmax,
                   .scale = "routed_scaling_factor",
                   .num_groups = "n_group",
                   .top_groups = "topk_group",
                   .adjust = DeepSeekV2Rule,
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "n_shared_experts"}},
    },
    {
        .model_types = "deepseek_v3|kimi_k2",
        .classes = "DeepseekV3|KimiK2",
        .keys = kDeepSeekV3Keys,
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "deepseek_v32",
        .classes = "DeepseekV32",
        .keys = kDeepSeekV32Keys,
        .kind = ListedDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "glm_moe_dsa",
        .classes = "GlmMoeDsa",
        .keys = kGlmMoeDsaKeys,
        .kind = ListedDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "glm4_moe",
        .classes = "Glm4Moe",
        .keys = kGlm4MoeKeys,
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "dots1",
        .classes = "Dots1",
        .keys = kDots1Keys,
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "bailing_moe",
        .classes = "BailingMoe",
        .keys = kBailingMoeKeys,
        .kind = FirstDense,
        .dense = {.layouts = {&kMlp}, .bias = {"use_bias"}},
        .routed = {.rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob"},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .bias = {"use_bias"},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "num_shared_experts"}},
    },
    {
        // Its published files are of type bailing_moe, too; their class says
        // which it is.
        .model_types = "bailing_moe_v2|bailing_moe",
        .classes = "BailingMoeV2",
        .keys = kBailingMoeV2Keys,
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = {.rule = kSigmoid,
                   .scale = "routed_scaling_factor",
                   .num_groups = "n_group",
                   .top_groups = "topk_group",
                   .adjust = BailingV2Rule,
                   .gate = "mlp.gate.weight",
                   .selection_bias = "mlp.gate.expert_bias",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "num_shared_experts"}},
    },
    {
        .model_types = "nemotron_h",
        .classes = "NemotronH",
        .keys = kNemotronHKeys,
        .layer = "backbone.layers.{L}.|model.layers.{L}.",
        .layer_list = "layers_block_type",
        .kind = Pattern,
        .activation = "mlp_hidden_act",
        .dense = {.layouts = {&kMixerUpDown}, .bias = {"mlp_bias"}},
        .routed = {.num_experts = "n_routed_experts",
                   .rule = kSigmoid,
                   .renormalize = {"norm_topk_prob"},
                   .scale = "routed_scaling_factor",
                   .num_groups = "n_group",
                   .top_groups = "topk_group",
                   .gate = "mixer.gate.weight",
                   .selection_bias = "mixer.gate.e_score_correction_bias",
                   .latent = "moe_latent_size",
                   .latent_in = "mixer.fc1_latent_proj.weight",
                   .latent_out = "mixer.fc2_latent_proj.weight",
                   .layouts = {&kMixerExperts, &kMixerExpertsStacked},
                   .bias = {"mlp_bias"},
                   .shared = {.layouts = {&kMixerShared},
                              .d_ff = "moe_shared_expert_intermediate_size"}},
    },
    {
        .model_types = "lfm2_moe",
        .classes = "Lfm2Moe",
        .keys = kLfm2MoeKeys,
        .kind = NumDense,
        .activation = "",
        .constant_activation = "silu",
        .dense = {.layouts = {&kFeedForwardW}},
        .routed = {.rule = {.score = ScoreFunction::kSigmoid,
                            .renormalize = Renormalize::kSum,
                            .renorm_epsilon = 1e-6F},
                   .renormalize = {"norm_topk_prob"},
                   .scale = "routed_scaling_factor",
                   .gate = "feed_forward.gate.weight",
                   .selection_bias = "feed_forward.expert_bias",
                   .has_selection_bias = {"use_expert_bias"},
                   .layouts = {&kFeedForwardExpertsW,
                               &kFeedForwardExpertsStacked}},
    },
    {
        .model_types = "ernie4_5_moe",
        .classes = "Ernie4_5_Moe|Ernie4_5Moe",
        .keys = kErnieKeys,
        .kind = Ranged,
        .dense = {.layouts = {&kMlp}, .bias = {"use_bias"}},
        .routed = {.num_experts = "moe_num_experts",
                   .top_k = "moe_k",
                   .rule = kSoftmaxRenormalized,
                   .adjust = ErnieRule,
                   .gate = "mlp.gate.weight",
                   .selection_bias =
                       "mlp.moe_statics.e_score_correction_bias|"
                       "mlp.gate.moe_statics.e_score_correction_bias",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .bias = {"use_bias"},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "moe_num_shared_experts"}},
    },
    {
        .model_types = "hunyuan_v1_moe",
        .classes = "HunYuanMoEV1|HunYuan",
        .keys = kHunYuanKeys,
        .routed = {.top_k = "moe_topk",
                   .d_ff = "moe_intermediate_size|intermediate_size",
                   .rule = kSoftmaxRenormalized,
                   .gate = "mlp.gate.wg.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .shared = {.layouts = {&kSharedMlp},
                              .count = "num_shared_expert",
                              .d_ff =
                                  "moe_intermediate_size|intermediate_size"}},
    },
    {
        // The dense FFNs mlps.0 and mlps.1 of a layer are not served: a layer
        // has one FFN.
        .model_types = "longcat_flash",
        .classes = "LongcatFlash",
        .keys = kLongcatKeys,
        .num_layers = "num_layers",
        .routed = {.num_experts = "n_routed_experts",
                   .num_identity_experts = "zero_expert_num",
                   .top_k = "moe_topk",
                   .d_ff = "expert_ffn_hidden_size",
                   .rule = kSoftmax,
                   .scale = "routed_scaling_factor",
                   .gate = "mlp.router.classifier.weight",
                   .selection_bias = "mlp.router.e_score_correction_bias",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked}},
    },
    {
        // The shared variant adds shared_intermediate_size.
        .model_types = "granitemoe|granitemoeshared",
        .classes = "GraniteMoe|GraniteMoeShared",
        .keys = kGraniteKeys,
        .routed = kGranite,
    },
    {
        .model_types = "gpt_oss",
        .classes = "GptOss",
        .keys = kGptOssKeys,
        .adjust = GptOssExpert,
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = kSoftmaxOfChosen,
                   .gate = "mlp.router.weight",
                   .gate_bias = {"", true},
                   .layouts = {&kGptOssExperts},
                   .bias = {"", true}},
    },
    {
        .model_types = "llama4",
        .classes = "Llama4",
        .keys = kLlama4Keys,
        .kind = Interleaved,
        .dense = {.layouts = {&kFeedForward}, .d_ff = "intermediate_size_mlp"},
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = {.score = ScoreFunction::kLogits,
                            .weight = WeightSource::kSigmoidOfChosen,
                            .placement = WeightPlacement::kInput},
                   .gate = "feed_forward.router.weight",
                   .layouts = {&kLlama4Experts, &kFeedForwardExperts},
                   .shared = {.layouts = {&kLlama4Shared},
                              .d_ff = "intermediate_size"}},
    },
    {
        .model_types = "dbrx",
        .classes = "Dbrx",
        .keys = kDbrxKeys,
        .layer = "transformer.blocks.{L}.|blocks.{L}.",
        .d_model = "d_model",
        .num_layers = "n_layers",
        .activation = "ffn_config.ffn_act_fn.name",
        .routed = {.num_experts = "ffn_config.moe_num_experts",
                   .top_k = "ffn_config.moe_top_k",
                   .d_ff = "ffn_config.ffn_hidden_size",
                   .rule = kSoftmax,
                   .adjust = DbrxRule,
                   .gate = "ffn.router.layer.weight",
                   .layouts = {&kDbrxExperts}},
    },
    {
        .model_types = "jamba",
        .classes = "Jamba",
        .keys = kJambaKeys,
        .kind = Periodic,
        .dense = {.layouts = {&kFeedForward}},
        .routed = {.d_ff = "intermediate_size",
                   .rule = kSoftmax,
                   .gate = "feed_forward.router.weight",
                   .layouts = {&kFeedForwardExperts,
                               &kFeedForwardExpertsStacked}},
    },
    SwitchSide("encoder", "encoder.block.{L}.layer.1.", "num_layers",
               SwitchEncoder),
    SwitchSide("decoder", "decoder.block.{L}.layer.2.",
               "num_decoder_layers|num_layers", SwitchDecoder),
    NllbSide("encoder", "model.encoder.layers.{L}.|encoder.layers.{L}.",
             "encoder_layers", "encoder_ffn_dim", NllbEncoder),
    NllbSide("decoder", "model.decoder.layers.{L}.|decoder.layers.{L}.",
             "decoder_layers", "decoder_ffn_dim", NllbDecoder),

    // Dense models.
    {
        .model_types = "llama|mistral",
        .classes = "Llama|Mistral",
        .keys = kLlamaKeys,
        .kind = AllDense,
        .dense = {.layouts = {&kMlp}, .bias = {"mlp_bias"}},
    },
    {
        .model_types = "qwen2|qwen3",
        .classes = "Qwen2|Qwen3",
        .keys = kQwenKeys,
        .kind = AllDense,
        .dense = kDenseMlp,
    },
    {
        .model_types = "gemma2|gemma3",
        .classes = "Gemma2|Gemma3",
        .keys = kGemmaKeys,
        .kind = AllDense,
        .activation = "hidden_activation",
        .dense = kDenseMlp,
    },
    {
        .model_types = "phi3",
        .classes = "Phi3",
        .keys = kPhi3Keys,
        .kind = AllDense,
        .dense = {.layouts = {&kMlpJoined}},
    },
    {
        .model_types = "nemotron",
        .classes = "Nemotron",
        .keys = kNemotronKeys,
        .kind = AllDense,
        .dense = {.layouts = {&kMlpUpDown}, .bias = {"mlp_bias"}},
    },
    {
        .model_types = "phi",
        .classes = "Phi",
        .keys = kPhiKeys,
        .kind = AllDense,
        .dense = {.layouts = {&kMlpFc}, .bias = {"", true}},
    },
    {
        .model_types = "starcoder2",
        .classes = "Starcoder2",
        .keys = kStarcoder2Keys,
        .kind = AllDense,
        .dense = {.layouts = {&kMlpC}, .bias = {"use_bias"}},
    },
    {
        .model_types = "gpt2",
        .classes = "GPT2",
        .keys = kGpt2Keys,
        .layer = "transformer.h.{L}.|h.{L}.",
        .d_model = "n_embd",
        .num_layers = "n_layer",
        .kind = AllDense,
        .activation = "activation_function",
        .dense = {.layouts = {&kMlpCInOut},
                  .d_ff = "n_inner",
                  .d_ff_factor = 4,
                  .bias = {"", true}},
    },
    {
        .model_types = "gpt_neox",
        .classes = "GPTNeoX",
        .keys = kGptNeoXKeys,
        .layer = "gpt_neox.layers.{L}.|layers.{L}.",
        .kind = AllDense,
        .dense = {.layouts = {&kMlp4h}, .bias = {"", true}},
    },
    {
        .model_types = "falcon",
        .classes = "Falcon|RW",
        .keys = kFalconKeys,
        .layer = "transformer.h.{L}.|h.{L}.",
        .kind = AllDense,
        .activation = "activation",
        .dense = {.layouts = {&kMlp4h},
                  .d_ff = "ffn_hidden_size",
                  .d_ff_factor = 4,
                  .bias = {"bias"}},
    },
    {
        .model_types = "bloom",
        .classes = "Bloom",
        .keys = kBloomKeys,
        .layer = "transformer.h.{L}.|h.{L}.",
        .num_layers = "n_layer",
        .kind = AllDense,
        .activation = "",
        .constant_activation = "gelu_pytorch_tanh",
        .dense = {.layouts = {&kMlp4h},
                  .d_ff = "",
                  .d_ff_factor = 4,
                  .bias = {"", true}},
    },
    {
        .model_types = "bert",
        .classes = "Bert",
        .keys = kBertKeys,
        .layer = "bert.encoder.layer.{L}.|encoder.layer.{L}.",
        .kind = AllDense,
        .beside = "output.LayerNorm.",
        .dense = {.layouts = {&kBert}, .bias = {"", true}},
    },
    {
        .model_types = "opt",
        .classes = "OPT",
        .keys = kOptKeys,
        .layer = "model.decoder.layers.{L}.|decoder.layers.{L}.",
        .kind = AllDense,
        .activation = "activation_function",
        .dense = {.layouts = {&kFc},
                  .d_ff = "ffn_dim",
                  .bias = {"enable_bias"}},
    },
    T5Side("encoder", "encoder.block.{L}.layer.1.", "num_layers"),
    T5Side("decoder", "decoder.block.{L}.layer.2.",
           "num_decoder_layers|num_layers"),
};

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

}  // namespace moe

// The families of models: layouts, rules, and the table that joins them.

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "router/models/family.h"

namespace moe {
namespace {

// ---- Layouts --------------------------------------------------------------

constexpr Layout Gated(absl::string_view gate, absl::string_view up,
                       absl::string_view down) {
  return {.gate = {gate}, .up = {up}, .down = {down}};
}
constexpr Layout Classic(absl::string_view up, absl::string_view down) {
  return {.gate = {}, .up = {up}, .down = {down}};
}
// gate_proj and up_proj in one tensor, one after the other.
constexpr Layout Joined(absl::string_view gate_up, absl::string_view down) {
  Layout layout = Gated(gate_up, gate_up, down);
  layout.gate.part = Part::kFirstHalf;
  layout.up.part = Part::kSecondHalf;
  return layout;
}
// The same with rows in turn.
constexpr Layout JoinedInTurn(absl::string_view gate_up,
                              absl::string_view down) {
  Layout layout = Gated(gate_up, gate_up, down);
  layout.gate.part = Part::kEven;
  layout.up.part = Part::kOdd;
  return layout;
}
// All experts in one tensor.
constexpr Layout Stacked(Layout layout) {
  for (TensorPattern* pattern : {&layout.gate, &layout.up, &layout.down}) {
    pattern->stacking = Stacking::kStacked;
  }
  return layout;
}
// Every matrix stored [in, out].
constexpr Layout InOut(Layout layout) {
  for (TensorPattern* pattern : {&layout.gate, &layout.up, &layout.down}) {
    pattern->order = StoredOrder::kInOut;
  }
  return layout;
}

// Dense layers.
constexpr Layout kMlp =
    Gated("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight");
constexpr Layout kMlpJoined =
    Joined("mlp.gate_up_proj.weight", "mlp.down_proj.weight");
constexpr Layout kMlpUpDown =
    Classic("mlp.up_proj.weight", "mlp.down_proj.weight");
constexpr Layout kMlpFc = Classic("mlp.fc1.weight", "mlp.fc2.weight");
constexpr Layout kMlpC = Classic("mlp.c_fc.weight", "mlp.c_proj.weight");
constexpr Layout kMlpCInOut = InOut(kMlpC);
constexpr Layout kMlp4h =
    Classic("mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight");
constexpr Layout kFc = Classic("fc1.weight", "fc2.weight");
constexpr Layout kFfnFc = Classic("ffn.fc1.weight", "ffn.fc2.weight");
constexpr Layout kBert =
    Classic("intermediate.dense.weight", "output.dense.weight");
constexpr Layout kT5 =
    Classic("DenseReluDense.wi.weight", "DenseReluDense.wo.weight");
constexpr Layout kT5Gated =
    Gated("DenseReluDense.wi_0.weight", "DenseReluDense.wi_1.weight",
          "DenseReluDense.wo.weight");
constexpr Layout kSwitch = Classic("mlp.wi.weight", "mlp.wo.weight");
constexpr Layout kFeedForward =
    Gated("feed_forward.gate_proj.weight", "feed_forward.up_proj.weight",
          "feed_forward.down_proj.weight");
constexpr Layout kFeedForwardW =
    Gated("feed_forward.w1.weight", "feed_forward.w3.weight",
          "feed_forward.w2.weight");
constexpr Layout kMixerUpDown =
    Classic("mixer.up_proj.weight", "mixer.down_proj.weight");

// Routed experts. The second ones are what the transformers library, from
// release 5 on, makes of them in memory, and of what is saved from there.
constexpr Layout kMlpExperts =
    Gated("mlp.experts.{E}.gate_proj.weight", "mlp.experts.{E}.up_proj.weight",
          "mlp.experts.{E}.down_proj.weight");
constexpr Layout kMlpExpertsStacked =
    Stacked(Joined("mlp.experts.gate_up_proj", "mlp.experts.down_proj"));
constexpr Layout kBlockExperts =
    Gated("block_sparse_moe.experts.{E}.w1.weight",
          "block_sparse_moe.experts.{E}.w3.weight",
          "block_sparse_moe.experts.{E}.w2.weight");
constexpr Layout kFeedForwardExperts =
    Gated("feed_forward.experts.{E}.gate_proj.weight",
          "feed_forward.experts.{E}.up_proj.weight",
          "feed_forward.experts.{E}.down_proj.weight");
constexpr Layout kFeedForwardExpertsW = Gated(
    "feed_forward.experts.{E}.w1.weight", "feed_forward.experts.{E}.w3.weight",
    "feed_forward.experts.{E}.w2.weight");
constexpr Layout kFeedForwardExpertsStacked = Stacked(Joined(
    "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"));
constexpr Layout kMixerExperts = Classic("mixer.experts.{E}.up_proj.weight",
                                         "mixer.experts.{E}.down_proj.weight");
constexpr Layout kMixerExpertsStacked =
    Stacked(Classic("mixer.experts.up_proj", "mixer.experts.down_proj"));

// Routed experts with a layout of their own.
constexpr Layout kGraniteExperts =
    Stacked(Joined("block_sparse_moe.input_linear.weight",
                   "block_sparse_moe.output_linear.weight"));
constexpr Layout kLlama4Experts = InOut(kFeedForwardExpertsStacked);
constexpr Layout kQwen3VlExperts = InOut(kMlpExpertsStacked);
constexpr Layout kGptOssExperts = InOut(
    Stacked(JoinedInTurn("mlp.experts.gate_up_proj", "mlp.experts.down_proj")));
constexpr Layout kDbrxExperts = {
    .gate = {"ffn.experts.mlp.w1", Stacking::kFlat},
    .up = {"ffn.experts.mlp.v1", Stacking::kFlat},
    .down = {"ffn.experts.mlp.w2", Stacking::kFlat, StoredOrder::kInOut},
};
constexpr Layout kSwitchExperts = Classic("mlp.experts.expert_{E}.wi.weight",
                                          "mlp.experts.expert_{E}.wo.weight");
constexpr Layout kNllbExperts = Classic("ffn.experts.expert_{E}.fc1.weight",
                                        "ffn.experts.expert_{E}.fc2.weight");

// Shared experts.
constexpr Layout kSharedExpert = Gated("mlp.shared_expert.gate_proj.weight",
                                       "mlp.shared_expert.up_proj.weight",
                                       "mlp.shared_expert.down_proj.weight");
constexpr Layout kSharedExperts = Gated("mlp.shared_experts.gate_proj.weight",
                                        "mlp.shared_experts.up_proj.weight",
                                        "mlp.shared_experts.down_proj.weight");
constexpr Layout kSharedMlp =
    Gated("mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight",
          "mlp.shared_mlp.down_proj.weight");
constexpr Layout kGraniteShared =
    Joined("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight");
constexpr Layout kLlama4Shared =
    Gated("feed_forward.shared_expert.gate_proj.weight",
          "feed_forward.shared_expert.up_proj.weight",
          "feed_forward.shared_expert.down_proj.weight");
constexpr Layout kMixerShared =
    Classic("mixer.shared_experts.up_proj.weight",
            "mixer.shared_experts.down_proj.weight");

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

// Groups only if topk_method asks for them; norm_topk_prob is not read.
absl::Status DeepSeekV2Rule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_RETURN_IF_ERROR(config.Expect("scoring_func", "softmax"));
  constexpr char kMethod[] = "topk_method";
  MOE_ASSIGN_OR_RETURN(const std::string method,
                       config.StringOr(kMethod, "greedy"));
  if (method == "group_limited_greedy") return absl::OkStatus();
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

absl::Status DeepSeekV3Rule(const FamilyConfig& config, RoutingRule& /*rule*/) {
  MOE_RETURN_IF_ERROR(config.Expect("scoring_func", "sigmoid"));
  return config.Expect("topk_method", "noaux_tc");
}

// A single weight is left as it is; norm_topk_prob is not read.
absl::Status BailingV2Rule(const FamilyConfig& config, RoutingRule& rule) {
  if (rule.top_k == 1) rule.renormalize = Renormalize::kNone;
  return config.Expect("score_function", "sigmoid");
}

absl::Status PhiMoeRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_ASSIGN_OR_RETURN(const double epsilon,
                       config.DoubleOr("router_jitter_noise", 0.01));
  rule.sparse_mixer_epsilon = static_cast<float>(epsilon);
  return absl::OkStatus();
}

absl::Status ErnieRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_ASSIGN_OR_RETURN(const double minimum,
                       config.DoubleOr("moe_norm_min", 1e-12));
  rule.renorm_min = static_cast<float>(minimum);
  return absl::OkStatus();
}

absl::Status DbrxRule(const FamilyConfig& config, RoutingRule& rule) {
  constexpr char kNorm[] = "ffn_config.moe_normalize_expert_weights";
  MOE_ASSIGN_OR_RETURN(const std::optional<double> norm,
                       config.OptionalDouble(kNorm));
  rule.renormalize = norm ? Renormalize::kPNorm : Renormalize::kNone;
  rule.renorm_p = static_cast<float>(norm.value_or(1.0));
  return absl::OkStatus();
}

// Whether a bias of the classifier counts, its readers disagree; no published
// model has one.
absl::Status LongcatRule(const FamilyConfig& config, RoutingRule& /*rule*/) {
  MOE_RETURN_IF_ERROR(config.Expect("zero_expert_type", "identity"));
  return config.Expect(Flag{"router_bias", false});
}

absl::Status SwitchRule(const FamilyConfig& config, RoutingRule& /*rule*/) {
  constexpr char kTopK[] = "num_selected_experts";
  MOE_ASSIGN_OR_RETURN(const int64_t top_k, config.IntOr(kTopK, 1));
  return top_k == 1 ? absl::OkStatus()
                    : config.Error(kTopK, "1", absl::StrCat(top_k));
}

// Dropout of experts at inference, as a factor on every weight.
absl::Status NllbRule(const FamilyConfig& config, RoutingRule& rule) {
  MOE_RETURN_IF_ERROR(config.Expect("second_expert_policy", "all"));
  MOE_ASSIGN_OR_RETURN(const double dropout,
                       config.DoubleOr("moe_token_dropout", 0.2));
  rule.scale = static_cast<float>(1.0 - dropout);
  return absl::OkStatus();
}

absl::Status GptOssExpert(const FamilyConfig& config, ExpertSpec& expert) {
  MOE_ASSIGN_OR_RETURN(const double limit,
                       config.DoubleOr("swiglu_limit", 7.0));
  expert.activation.beta = 1.702F;
  expert.activation.limit = static_cast<float>(limit);
  expert.activation.up_offset = 1.0F;
  return absl::OkStatus();
}

// "relu", "gated-gelu": whether there is a gate, and the activation, which
// dense_act_fn may overrule.
absl::Status T5Expert(const FamilyConfig& config, ExpertSpec& expert) {
  constexpr char kProjection[] = "feed_forward_proj";
  MOE_ASSIGN_OR_RETURN(const std::string projection,
                       config.StringOr(kProjection, "relu"));
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
    .renormalize = {"norm_topk_prob", true},
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
    .renormalize = {"norm_topk_prob", false},
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
    .gate = "block_sparse_moe.router.layer.weight",
    .layouts = {&kGraniteExperts},
    .shared = {.layouts = {&kGraniteShared},
               .d_ff = "shared_intermediate_size"},
};

// The sides of encoder-decoder models.
constexpr Family T5Side(absl::string_view part, absl::string_view layer,
                        absl::string_view num_layers) {
  return {
      .model_types = "t5",
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = AllDense,
      .activation = "dense_act_fn",
      .default_activation = "relu",
      .adjust = T5Expert,
      .dense = {.layouts = {&kT5, &kT5Gated}, .d_ff = "d_ff"},
  };
}

constexpr Family SwitchSide(absl::string_view part, absl::string_view layer,
                            absl::string_view num_layers, LayerKindRule kind) {
  return {
      .model_types = "switch_transformers",
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = kind,
      .activation = "dense_act_fn",
      .default_activation = "relu",
      .dense = {.layouts = {&kSwitch}, .d_ff = "d_ff"},
      .routed = {.top_k = "",
                 .d_ff = "d_ff",
                 .rule = {.top_k = 1, .score = ScoreFunction::kSoftmax},
                 .adjust = SwitchRule,
                 .gate = "mlp.router.classifier.weight",
                 .gate_bias = {"router_bias", false},
                 .layouts = {&kSwitchExperts}},
  };
}

constexpr Family NllbSide(absl::string_view part, absl::string_view layer,
                          absl::string_view num_layers, absl::string_view d_ff,
                          LayerKindRule kind) {
  return {
      .model_types = "nllb-moe",
      .part = part,
      .layer = layer,
      .d_model = "d_model",
      .num_layers = num_layers,
      .kind = kind,
      .activation = "activation_function",
      .default_activation = "relu",
      .dense = {.layouts = {&kFfnFc}, .d_ff = d_ff, .bias = {"", true}},
      .routed = {.top_k = "",
                 .d_ff = d_ff,
                 .rule = {.top_k = 2,
                          .score = ScoreFunction::kSoftmax,
                          .renormalize = Renormalize::kSum,
                          .renorm_min = 0x1p-23F},
                 .adjust = NllbRule,
                 .gate = "ffn.router.classifier.weight",
                 .gate_bias = {"router_bias", false},
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
        .routed = kMixtral,
    },
    {
        .model_types = "minimax_m2",
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
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = {.score = ScoreFunction::kSparseMixer},
                   .adjust = PhiMoeRule,
                   .gate = "block_sparse_moe.gate.weight|mlp.router.weight",
                   .layouts = {&kBlockExperts, &kMlpExpertsStacked}},
    },
    {
        .model_types = "qwen3_moe",
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = kQwen,
    },
    {
        .model_types = "qwen2_moe",
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = With(kQwen, kQwenShared),
    },
    {
        .model_types = "qwen3_next",
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = {.rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob", true},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .shared = kQwenShared},
    },
    {
        .model_types = "qwen3_5_moe",
        .routed = {.rule = kSoftmaxRenormalized,
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExpertsStacked, &kMlpExperts},
                   .shared = kQwenShared},
    },
    {
        .model_types = "qwen3_vl_moe",
        .kind = SparseStep,
        .dense = kDenseMlp,
        .routed = {.rule = kSoftmaxRenormalized,
                   .gate = "mlp.gate.weight",
                   .layouts = {&kQwen3VlExperts, &kMlpExperts}},
    },
    {
        .model_types = "olmoe",
        .routed = {.d_ff = "intermediate_size",
                   .rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob", false},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked}},
    },
    {
        .model_types = "deepseek_v2",
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
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = With(kDeepSeekV3, DeepSeekV3Rule),
    },
    {
        .model_types = "glm4_moe|dots1",
        .kind = FirstDense,
        .dense = kDenseMlp,
        .routed = kDeepSeekV3,
    },
    {
        .model_types = "bailing_moe",
        .kind = FirstDense,
        .dense = {.layouts = {&kMlp}, .bias = {"use_bias", false}},
        .routed = {.rule = kSoftmaxRenormalized,
                   .renormalize = {"norm_topk_prob", false},
                   .gate = "mlp.gate.weight",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .bias = {"use_bias", false},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "num_shared_experts"}},
    },
    {
        .model_types = "bailing_moe_v2",
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
        .layer = "backbone.layers.{L}.|model.layers.{L}.",
        .kind = Pattern,
        .activation = "mlp_hidden_act",
        .default_activation = "relu2",
        .dense = {.layouts = {&kMixerUpDown}, .bias = {"mlp_bias", false}},
        .routed = {.num_experts = "n_routed_experts",
                   .rule = kSigmoid,
                   .renormalize = {"norm_topk_prob", true},
                   .scale = "routed_scaling_factor",
                   .num_groups = "n_group",
                   .top_groups = "topk_group",
                   .gate = "mixer.gate.weight",
                   .selection_bias = "mixer.gate.e_score_correction_bias",
                   .latent = "moe_latent_size",
                   .latent_in = "mixer.fc1_latent_proj.weight",
                   .latent_out = "mixer.fc2_latent_proj.weight",
                   .layouts = {&kMixerExperts, &kMixerExpertsStacked},
                   .bias = {"mlp_bias", false},
                   .shared = {.layouts = {&kMixerShared},
                              .d_ff = "moe_shared_expert_intermediate_size"}},
    },
    {
        .model_types = "lfm2_moe",
        .kind = NumDense,
        .activation = "",
        .dense = {.layouts = {&kFeedForwardW}},
        .routed = {.rule = {.score = ScoreFunction::kSigmoid,
                            .renormalize = Renormalize::kSum,
                            .renorm_epsilon = 1e-6F},
                   .renormalize = {"norm_topk_prob", true},
                   .scale = "routed_scaling_factor",
                   .gate = "feed_forward.gate.weight",
                   .selection_bias = "feed_forward.expert_bias",
                   .has_selection_bias = {"use_expert_bias", true},
                   .layouts = {&kFeedForwardExpertsW,
                               &kFeedForwardExpertsStacked}},
    },
    {
        .model_types = "ernie4_5_moe",
        .kind = Ranged,
        .dense = {.layouts = {&kMlp}, .bias = {"use_bias", false}},
        .routed = {.num_experts = "moe_num_experts",
                   .top_k = "moe_k",
                   .rule = kSoftmaxRenormalized,
                   .adjust = ErnieRule,
                   .gate = "mlp.gate.weight",
                   .selection_bias =
                       "mlp.moe_statics.e_score_correction_bias|"
                       "mlp.gate.moe_statics.e_score_correction_bias",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked},
                   .bias = {"use_bias", false},
                   .shared = {.layouts = {&kSharedExperts},
                              .count = "moe_num_shared_experts"}},
    },
    {
        .model_types = "hunyuan_v1_moe",
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
        .num_layers = "num_layers",
        .routed = {.num_experts = "n_routed_experts",
                   .num_identity_experts = "zero_expert_num",
                   .top_k = "moe_topk",
                   .d_ff = "expert_ffn_hidden_size",
                   .rule = kSoftmax,
                   .scale = "routed_scaling_factor",
                   .adjust = LongcatRule,
                   .gate = "mlp.router.classifier.weight",
                   .selection_bias = "mlp.router.e_score_correction_bias",
                   .layouts = {&kMlpExperts, &kMlpExpertsStacked}},
    },
    {
        // The shared variant adds shared_intermediate_size.
        .model_types = "granitemoe|granitemoeshared",
        .routed = kGranite,
    },
    {
        .model_types = "gpt_oss",
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
        .kind = Interleaved,
        .dense = {.layouts = {&kFeedForward}, .d_ff = "intermediate_size_mlp"},
        .routed = {.num_experts = "num_local_experts",
                   .d_ff = "intermediate_size",
                   .rule = {.score = ScoreFunction::kLogits,
                            .weight = WeightSource::kSigmoidOfChosen,
                            .placement = WeightPlacement::kInput},
                   .gate = "feed_forward.router.weight",
                   .layouts = {&kLlama4Experts},
                   .shared = {.layouts = {&kLlama4Shared},
                              .d_ff = "intermediate_size"}},
    },
    {
        .model_types = "dbrx",
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
        .kind = AllDense,
        .dense = {.layouts = {&kMlp}, .bias = {"mlp_bias", false}},
    },
    {
        .model_types = "qwen2|qwen3",
        .kind = AllDense,
        .dense = kDenseMlp,
    },
    {
        .model_types = "gemma2|gemma3",
        .kind = AllDense,
        .activation = "hidden_activation",
        .default_activation = "gelu_pytorch_tanh",
        .dense = kDenseMlp,
    },
    {
        .model_types = "phi3",
        .kind = AllDense,
        .dense = {.layouts = {&kMlpJoined}},
    },
    {
        .model_types = "nemotron",
        .kind = AllDense,
        .default_activation = "relu2",
        .dense = {.layouts = {&kMlpUpDown}, .bias = {"mlp_bias", false}},
    },
    {
        .model_types = "phi",
        .kind = AllDense,
        .default_activation = "gelu_new",
        .dense = {.layouts = {&kMlpFc}, .bias = {"", true}},
    },
    {
        .model_types = "starcoder2",
        .kind = AllDense,
        .default_activation = "gelu_pytorch_tanh",
        .dense = {.layouts = {&kMlpC}, .bias = {"use_bias", true}},
    },
    {
        .model_types = "gpt2",
        .layer = "transformer.h.{L}.|h.{L}.",
        .d_model = "n_embd",
        .num_layers = "n_layer",
        .kind = AllDense,
        .activation = "activation_function",
        .default_activation = "gelu_new",
        .dense = {.layouts = {&kMlpCInOut},
                  .d_ff = "n_inner",
                  .d_ff_factor = 4,
                  .bias = {"", true}},
    },
    {
        .model_types = "gpt_neox",
        .layer = "gpt_neox.layers.{L}.|layers.{L}.",
        .kind = AllDense,
        .default_activation = "gelu",
        .dense = {.layouts = {&kMlp4h}, .bias = {"", true}},
    },
    {
        .model_types = "falcon",
        .layer = "transformer.h.{L}.|h.{L}.",
        .num_layers = "num_hidden_layers|n_layer",
        .kind = AllDense,
        .activation = "activation",
        .default_activation = "gelu",
        .dense = {.layouts = {&kMlp4h},
                  .d_ff = "ffn_hidden_size",
                  .d_ff_factor = 4,
                  .bias = {"bias", false}},
    },
    {
        .model_types = "bloom",
        .layer = "transformer.h.{L}.|h.{L}.",
        .d_model = "hidden_size|n_embed",
        .num_layers = "n_layer|num_hidden_layers",
        .kind = AllDense,
        .activation = "",
        .default_activation = "gelu_pytorch_tanh",
        .dense = {.layouts = {&kMlp4h},
                  .d_ff = "",
                  .d_ff_factor = 4,
                  .bias = {"", true}},
    },
    {
        .model_types = "bert",
        .layer = "bert.encoder.layer.{L}.|encoder.layer.{L}.",
        .kind = AllDense,
        .default_activation = "gelu",
        .dense = {.layouts = {&kBert}, .bias = {"", true}},
    },
    {
        .model_types = "opt",
        .layer = "model.decoder.layers.{L}.|decoder.layers.{L}.",
        .kind = AllDense,
        .activation = "activation_function",
        .default_activation = "relu",
        .dense = {.layouts = {&kFc},
                  .d_ff = "ffn_dim",
                  .bias = {"enable_bias", true}},
    },
    T5Side("encoder", "encoder.block.{L}.layer.1.", "num_layers"),
    T5Side("decoder", "decoder.block.{L}.layer.2.",
           "num_decoder_layers|num_layers"),
};

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

}  // namespace moe

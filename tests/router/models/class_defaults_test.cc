// The table of families against the defaults of the transformers library's
// configuration classes, as tests/golden/class_defaults.json has them.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/models/family.h"

namespace moe {
namespace {

std::vector<std::string> Split(absl::string_view text, char by) {
  return absl::StrSplit(text, by);
}

using Json = nlohmann::json;

Json Recorded() {
  std::ifstream file(MOE_CLASS_DEFAULTS);
  return Json::parse(file);
}

Json AsJson(const KeyValue& value) {
  struct Converter {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(absl::string_view v) const { return std::string(v); }
    Json operator()(bool v) const { return v; }
    Json operator()(int64_t v) const { return v; }
    Json operator()(double v) const { return v; }
  };
  return std::visit(Converter(), value);
}

template <typename Value, size_t kSize>
bool Lists(const Value (&values)[kSize],
           const std::type_identity_t<Value>& value) {
  return std::find(std::begin(values), std::end(values), value) !=
         std::end(values);
}

// What the classes derive from other keys.
constexpr std::pair<absl::string_view, absl::string_view> kDerived[] = {
    {"switch_transformers", "encoder_sparse_step"},
    {"switch_transformers", "decoder_sparse_step"},
};

TEST(ClassDefaultsTest, AbsentKeysStandForWhatTheClassesTake) {
  const Json recorded = Recorded();
  size_t compared = 0;
  for (const Family& family : Families()) {
    for (const std::string& type : Split(family.model_types, '|')) {
      if (!recorded.contains(type)) continue;
      for (const RuleKey& rule : family.keys) {
        if (rule.use != KeyUse::kRule && rule.use != KeyUse::kHeld) continue;
        for (const std::string& key : Split(rule.key, '=')) {
          if (!recorded[type].contains(key)) continue;
          if (Lists(kDerived, {type, key})) continue;
          EXPECT_EQ(AsJson(rule.otherwise), recorded[type][key])
              << type << ": " << key;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 150U);
}

// What says nothing of what an FFN computes from one row of hidden states:
// attention, norms, embeddings, training; capacities, which are not applied;
// the router's dtype, which is float32 here.
constexpr absl::string_view kNotOfTheFfn[] = {
    "_remove_final_layer_norm",
    "_sliding_window_pattern",
    "activation_dropout",
    "add_cross_attention",
    "add_router_probs",
    "alibi",
    "apply_residual_connection_post_layernorm",
    "attention_bias",
    "attention_chunk_size",
    "attention_dropout",
    "attention_multiplier",
    "attention_probs_dropout_prob",
    "attn_layer_offset",
    "attn_layer_period",
    "attn_logit_softcapping",
    "attn_pdrop",
    "attn_scale",
    "attn_temperature_tuning",
    "batch_prioritized_routing",
    "block_size",
    "chunk_size",
    "classifier_dropout",
    "clip_qkv",
    "conv_L_cache",
    "conv_bias",
    "conv_kernel",
    "d_kv",
    "decoder_attention_heads",
    "decoder_layerdrop",
    "do_layer_norm_before",
    "dropout",
    "dropout_rate",
    "emb_pdrop",
    "embd_pdrop",
    "embedding_dropout",
    "embedding_multiplier",
    "encoder_attention_heads",
    "encoder_layerdrop",
    "expand",
    "expert_capacity",
    "ffn_config.hidden_size",
    "ffn_config.moe_jitter_eps",
    "ffn_config.moe_loss_weight",
    "final_logit_softcapping",
    "floor_scale",
    "full_attn_alpha_factor",
    "full_attn_beta_factor",
    "head_dim",
    "hidden_dropout",
    "hidden_dropout_prob",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "input_jitter_noise",
    "is_decoder",
    "kv_lora_rank",
    "layer_norm_elementwise_affine",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layer_types",
    "layerdrop",
    "linear_attn_alpha_factor",
    "linear_attn_beta_factor",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "lm_head_bias",
    "logits_scaling",
    "mamba_conv_bias",
    "mamba_d_conv",
    "mamba_d_state",
    "mamba_dt_rank",
    "mamba_expand",
    "mamba_head_dim",
    "mamba_hidden_act",
    "mamba_num_heads",
    "mamba_proj_bias",
    "mamba_ssm_cache_dtype",
    "max_position_embeddings",
    "max_seq_len",
    "max_window_layers",
    "mlp_alpha_factor",
    "mlp_beta_factor",
    "moe_eval_capacity_token_fraction",
    "moe_shared_expert_overlap",
    "multi_query",
    "n_groups",
    "n_head",
    "n_heads",
    "n_positions",
    "new_decoder_architecture",
    "no_rope_layer_interval",
    "norm_eps",
    "norm_epsilon",
    "normalize_router_prob_before_dropping",
    "num_attention_heads",
    "num_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "num_ln_in_parallel_attn",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "original_max_position_embeddings",
    "output_router_logits",
    "parallel_attn",
    "pretraining_tp",
    "q_lora_rank",
    "qk_head_dim",
    "qk_layernorm",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qkv_bias",
    "query_pre_attn_scalar",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "reorder_and_upcast_attn",
    "rescale_prenorm_residual",
    "resid_pdrop",
    "residual_dropout",
    "residual_in_fp32",
    "residual_multiplier",
    "rms_norm_eps",
    "rope_interleave",
    "router_aux_loss_coef",
    "router_dtype",
    "router_ignore_padding_tokens",
    "router_z_loss_coef",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "scale_decoder_outputs",
    "scale_embedding",
    "sliding_window",
    "slow_but_exact",
    "ssm_state_size",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "tie_word_embeddings",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "type_vocab_size",
    "use_associative_scan",
    "use_bidirectional_attention",
    "use_cache",
    "use_conv_bias",
    "use_mamba_kernels",
    "use_mambapy",
    "use_parallel_residual",
    "use_qk_norm",
    "use_sliding_window",
    "v_head_dim",
    "vocab_size",
    "word_embed_proj_dim"

};

// Those that some families follow, and others have without following them.
constexpr std::pair<absl::string_view, absl::string_view> kNotFollowed[] = {
    // For training.
    {"llama4", "router_jitter_noise"},
    {"minimax", "router_jitter_noise"},
    {"minimax_m2", "router_jitter_noise"},
    {"mixtral", "router_jitter_noise"},
    {"switch_transformers", "router_jitter_noise"},
    // For the second FFNs of a layer, which are not served.
    {"longcat_flash", "ffn_hidden_size"},
    // For state space layers.
    {"nemotron_h", "use_bias"},
    // moe_shared_expert_intermediate_size says it.
    {"nemotron_h", "n_shared_experts"},
    // feed_forward_proj says it.
    {"t5", "is_gated_act"},
};

TEST(ClassDefaultsTest, EveryKeyOfTheClassesIsListedOrNotOfTheFfn) {
  const Json recorded = Recorded();
  std::set<std::string> unlisted;
  for (const Family& family : Families()) {
    std::set<std::string> listed;
    for (const RuleKey& rule : family.keys) {
      for (const std::string& key : Split(rule.key, '=')) {
        listed.insert(key);
      }
    }
    for (const std::string& type : Split(family.model_types, '|')) {
      if (!recorded.contains(type)) continue;
      for (const auto& [key, value] : recorded[type].items()) {
        if (listed.count(key) > 0 || Lists(kNotOfTheFfn, key) ||
            Lists(kNotFollowed, {type, key})) {
          continue;
        }
        unlisted.insert(absl::StrCat(type, ": ", key));
      }
    }
  }
  EXPECT_THAT(unlisted, ::testing::IsEmpty());
}

}  // namespace
}  // namespace moe

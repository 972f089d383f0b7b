// Where the families' tensors lie: names, relative to the layer, and layouts.
// Internal to the table in families.cc.
//
// Thread-safe: constants.

#pragma once

#include "absl/strings/string_view.h"
#include "router/models/family.h"

namespace moe {

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
inline constexpr Layout kMlp =
    Gated("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight");
inline constexpr Layout kMlpJoined =
    Joined("mlp.gate_up_proj.weight", "mlp.down_proj.weight");
inline constexpr Layout kMlpUpDown =
    Classic("mlp.up_proj.weight", "mlp.down_proj.weight");
inline constexpr Layout kMlpFc = Classic("mlp.fc1.weight", "mlp.fc2.weight");
inline constexpr Layout kMlpC = Classic("mlp.c_fc.weight", "mlp.c_proj.weight");
inline constexpr Layout kMlpCInOut = InOut(kMlpC);
inline constexpr Layout kMlp4h =
    Classic("mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight");
inline constexpr Layout kFc = Classic("fc1.weight", "fc2.weight");
inline constexpr Layout kFfnFc = Classic("ffn.fc1.weight", "ffn.fc2.weight");
inline constexpr Layout kBert =
    Classic("intermediate.dense.weight", "output.dense.weight");
inline constexpr Layout kT5 =
    Classic("DenseReluDense.wi.weight", "DenseReluDense.wo.weight");
inline constexpr Layout kT5Gated =
    Gated("DenseReluDense.wi_0.weight", "DenseReluDense.wi_1.weight",
          "DenseReluDense.wo.weight");
inline constexpr Layout kSwitch = Classic("mlp.wi.weight", "mlp.wo.weight");
inline constexpr Layout kFeedForward =
    Gated("feed_forward.gate_proj.weight", "feed_forward.up_proj.weight",
          "feed_forward.down_proj.weight");
inline constexpr Layout kFeedForwardW =
    Gated("feed_forward.w1.weight", "feed_forward.w3.weight",
          "feed_forward.w2.weight");
inline constexpr Layout kMixerUpDown =
    Classic("mixer.up_proj.weight", "mixer.down_proj.weight");

// Routed experts. The second ones are what the transformers library, from
// release 5 on, makes of them in memory, and of what is saved from there.
inline constexpr Layout kMlpExperts =
    Gated("mlp.experts.{E}.gate_proj.weight", "mlp.experts.{E}.up_proj.weight",
          "mlp.experts.{E}.down_proj.weight");
inline constexpr Layout kMlpExpertsStacked =
    Stacked(Joined("mlp.experts.gate_up_proj", "mlp.experts.down_proj"));
inline constexpr Layout kBlockExperts =
    Gated("block_sparse_moe.experts.{E}.w1.weight",
          "block_sparse_moe.experts.{E}.w3.weight",
          "block_sparse_moe.experts.{E}.w2.weight");
inline constexpr Layout kFeedForwardExperts =
    Gated("feed_forward.experts.{E}.gate_proj.weight",
          "feed_forward.experts.{E}.up_proj.weight",
          "feed_forward.experts.{E}.down_proj.weight");
inline constexpr Layout kFeedForwardExpertsW = Gated(
    "feed_forward.experts.{E}.w1.weight", "feed_forward.experts.{E}.w3.weight",
    "feed_forward.experts.{E}.w2.weight");
inline constexpr Layout kFeedForwardExpertsStacked = Stacked(Joined(
    "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"));
inline constexpr Layout kMixerExperts = Classic(
    "mixer.experts.{E}.up_proj.weight", "mixer.experts.{E}.down_proj.weight");
inline constexpr Layout kMixerExpertsStacked =
    Stacked(Classic("mixer.experts.up_proj", "mixer.experts.down_proj"));

// Routed experts with a layout of their own.
inline constexpr Layout kGraniteExperts =
    Stacked(Joined("block_sparse_moe.input_linear.weight",
                   "block_sparse_moe.output_linear.weight"));
inline constexpr Layout kGraniteNative =
    Stacked(Joined("block_sparse_moe.experts.gate_up_proj",
                   "block_sparse_moe.experts.down_proj"));
inline constexpr Layout kLlama4Experts = InOut(kFeedForwardExpertsStacked);
inline constexpr Layout kQwen3VlExperts = InOut(kMlpExpertsStacked);
inline constexpr Layout kGptOssExperts = InOut(
    Stacked(JoinedInTurn("mlp.experts.gate_up_proj", "mlp.experts.down_proj")));
inline constexpr Layout kDbrxExperts = {
    .gate = {"ffn.experts.mlp.w1", Stacking::kFlat},
    .up = {"ffn.experts.mlp.v1", Stacking::kFlat},
    .down = {"ffn.experts.mlp.w2", Stacking::kFlat, StoredOrder::kInOut},
};
inline constexpr Layout kSwitchExperts = Classic(
    "mlp.experts.expert_{E}.wi.weight", "mlp.experts.expert_{E}.wo.weight");
inline constexpr Layout kNllbExperts = Classic(
    "ffn.experts.expert_{E}.fc1.weight", "ffn.experts.expert_{E}.fc2.weight");

// Shared experts.
inline constexpr Layout kSharedExpert = Gated(
    "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight",
    "mlp.shared_expert.down_proj.weight");
inline constexpr Layout kSharedExperts = Gated(
    "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
    "mlp.shared_experts.down_proj.weight");
inline constexpr Layout kSharedMlp =
    Gated("mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight",
          "mlp.shared_mlp.down_proj.weight");
inline constexpr Layout kGraniteShared =
    Joined("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight");
inline constexpr Layout kLlama4Shared =
    Gated("feed_forward.shared_expert.gate_proj.weight",
          "feed_forward.shared_expert.up_proj.weight",
          "feed_forward.shared_expert.down_proj.weight");
inline constexpr Layout kMixerShared =
    Classic("mixer.shared_experts.up_proj.weight",
            "mixer.shared_experts.down_proj.weight");

}  // namespace moe

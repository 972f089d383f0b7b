// How a family of models is described: one entry of data per family.
//
// An entry maps config keys (see router/models/family_config.h) and tensor
// names onto the parts that this project computes with: a RoutingRule,
// ExpertSpecs, and where their tensors lie. Names of tensors are relative to
// the layer, and "a|b" means the first of them that the checkpoint has.
//
// Thread-safe: plain values, constant for the whole run.

#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/base/expert_spec.h"
#include "router/models/family_config.h"
#include "router/models/layer_kinds.h"
#include "router/models/model_spec.h"
#include "router/routing_rule.h"

namespace moe {

// As ProjectionSpec, in a table.
struct TensorPattern {
  absl::string_view tensor = {};
  Stacking stacking = Stacking::kSeparate;
  StoredOrder order = StoredOrder::kOutIn;
  Part part = Part::kAll;
};

// Where the projections of a set of experts lie; classic ones have no gate.
struct Layout {
  TensorPattern gate = {};
  TensorPattern up = {};
  TensorPattern down = {};

  constexpr bool gated() const { return !gate.tensor.empty(); }
};

// The layouts that the files of a family come in: the first one whose tensors
// are there. Unused places are null.
using Layouts = std::array<const Layout*, 3>;

// What keys and data can't say: changes what has been described so far, or
// refuses it. Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the key.
using RuleHook = absl::Status (*)(const FamilyConfig& config,
                                  RoutingRule& rule);
using ExpertHook = absl::Status (*)(const FamilyConfig& config,
                                    ExpertSpec& expert);

// The FFN of a dense layer.
struct DenseBlock {
  Layouts layouts = {};
  absl::string_view d_ff = "intermediate_size";
  // d_ff where the key stands for nothing, as a multiple of d_model; 0: it must
  // be there.
  int64_t d_ff_factor = 0;
  Flag bias = {};
};

// What every token visits besides its routed experts: one FFN as wide as
// `count` of them, `d_ff` each. None where either is 0 or stands for nothing.
struct SharedBlock {
  Layouts layouts = {};
  absl::string_view count = {};  // empty: 1
  absl::string_view d_ff = "moe_intermediate_size";
  absl::string_view gate = {};  // tensor [1, d_model], or empty
};

// A mixture of experts.
struct RoutedBlock {
  absl::string_view num_experts = "num_experts";
  absl::string_view num_identity_experts = {};      // come on top; empty: none
  absl::string_view top_k = "num_experts_per_tok";  // empty: rule.top_k
  absl::string_view d_ff = "moe_intermediate_size";

  RoutingRule rule = {};
  Flag renormalize = {"", true};  // false: not at all, whatever the rule says
  absl::string_view scale = {};   // empty: rule.scale
  absl::string_view num_groups = {};
  absl::string_view top_groups = {};
  absl::Status (*adjust)(const FamilyConfig& config,
                         RoutingRule& rule) = nullptr;

  absl::string_view gate = {};  // tensor
  Flag gate_bias = {};
  absl::string_view selection_bias = {};  // tensor, or empty
  Flag has_selection_bias = {"", true};
  absl::string_view latent = {};  // key of the width; absent: none
  absl::string_view latent_in = {};
  absl::string_view latent_out = {};

  Layouts layouts = {};
  Flag bias = {};
  SharedBlock shared = {};
};

// The names of a layer in the checkpoints of decoders, alone or next to an
// encoder of images.
inline constexpr absl::string_view kDecoderLayer =
    "model.layers.{L}.|model.language_model.layers.{L}.|"
    "language_model.model.layers.{L}.|layers.{L}.";

// An entry lists every key that says what its reference implementation
// computes, read or held (RuleKey), with the values that the implementation's
// configuration class takes for absent ones.
struct Family {
  absl::string_view model_types = {};  // "a|b"
  // What the implementation's class names start with, "a|b": a config that
  // names another class is another model, whatever its model_type.
  absl::string_view classes = {};
  absl::Span<const RuleKey> keys = {};
  // Which side of an encoder-decoder model; those have an entry for each.
  absl::string_view part = {};

  absl::string_view layer = kDecoderLayer;  // what tensor names start with
  absl::string_view d_model = "hidden_size";
  absl::string_view num_layers = "num_hidden_layers";
  // A list with an item per layer, which may be there instead of num_layers.
  absl::string_view layer_list = {};
  LayerKindRule kind = AllRouted;
  // Tensors among those of the FFN that don't belong to it, such as norms: what
  // their names start with, "a|b".
  absl::string_view beside = {};

  absl::string_view activation = "hidden_act";  // key, or empty:
  absl::string_view constant_activation = {};
  absl::Status (*adjust)(const FamilyConfig& config,
                         ExpertSpec& expert) = nullptr;

  DenseBlock dense = {};
  RoutedBlock routed = {};
};

// All that there are.
absl::Span<const Family> Families();

}  // namespace moe

#include "router/models/layer_kinds.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

LayerKind RoutedIf(bool routed) {
  return routed ? LayerKind::kRouted : LayerKind::kDense;
}

bool Contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

absl::StatusOr<LayerKind> Switch(const FamilyConfig& config, int64_t layer,
                                 int64_t num_layers, absl::string_view step_key,
                                 absl::string_view count_key) {
  MOE_ASSIGN_OR_RETURN(std::optional<int64_t> step,
                       config.OptionalInt(step_key));
  if (!step) {
    MOE_ASSIGN_OR_RETURN(const int64_t sparse,
                         config.Int(count_key, /*layer=*/0, /*min=*/0));
    step = num_layers / std::max<int64_t>(sparse, 1);
  }
  if (*step == 0) return LayerKind::kDense;
  return RoutedIf(*step == 1 || layer % *step == 1);
}

absl::StatusOr<LayerKind> Nllb(const FamilyConfig& config, int64_t layer,
                               absl::string_view step_key) {
  MOE_ASSIGN_OR_RETURN(const int64_t step,
                       config.Int(step_key, /*layer=*/0, /*min=*/-1));
  return RoutedIf(step > 0 && (layer + 1) % step == 0);
}

// The newer form of the same: a list of names, which alone says how many layers
// there are.
absl::StatusOr<std::optional<LayerKind>> NamedKind(const FamilyConfig& config,
                                                   int64_t layer) {
  constexpr char kKey[] = "layers_block_type";
  if (!config.Has(kKey)) return std::optional<LayerKind>();
  MOE_ASSIGN_OR_RETURN(const std::vector<std::string> kinds,
                       config.Strings(kKey));
  if (layer >= static_cast<int64_t>(kinds.size())) {
    return config.Error(kKey, "an item for every layer",
                        absl::StrCat(kinds.size(), " items"));
  }
  const std::string& kind = kinds[static_cast<size_t>(layer)];
  if (kind == "moe") return LayerKind::kRouted;
  if (kind == "mlp") return LayerKind::kDense;
  for (const char* other : {"linear_attention", "full_attention", "mamba",
                            "attention", "mamba2", "sliding_attention"}) {
    if (kind == other) return LayerKind::kNoFfn;
  }
  return absl::UnimplementedError(
      config
          .Error(kKey,
                 "items \"moe\", \"mlp\", \"linear_attention\" or "
                 "\"full_attention\"",
                 Quote(kind))
          .message());
}

}  // namespace

absl::StatusOr<LayerKind> AllDense(const FamilyConfig& /*config*/,
                                   int64_t /*layer*/, int64_t /*num_layers*/) {
  return LayerKind::kDense;
}

absl::StatusOr<LayerKind> AllRouted(const FamilyConfig& /*config*/,
                                    int64_t /*layer*/, int64_t /*num_layers*/) {
  return LayerKind::kRouted;
}

absl::StatusOr<LayerKind> FirstDense(const FamilyConfig& config, int64_t layer,
                                     int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t dense,
                       config.Int("first_k_dense_replace", 0, /*min=*/0));
  MOE_ASSIGN_OR_RETURN(const int64_t step, config.Int("moe_layer_freq"));
  return RoutedIf(layer >= dense && layer % step == 0);
}

absl::StatusOr<LayerKind> ListedDense(const FamilyConfig& config, int64_t layer,
                                      int64_t num_layers) {
  constexpr char kKey[] = "mlp_layer_types";
  if (!config.Has(kKey)) return FirstDense(config, layer, num_layers);
  MOE_ASSIGN_OR_RETURN(const std::vector<std::string> kinds,
                       config.Strings(kKey));
  if (static_cast<int64_t>(kinds.size()) < num_layers) {
    return config.Error(kKey, "an item for every layer",
                        absl::StrCat(kinds.size(), " items"));
  }
  const std::string& kind = kinds[static_cast<size_t>(layer)];
  if (kind == "sparse") return LayerKind::kRouted;
  if (kind == "dense") return LayerKind::kDense;
  return absl::UnimplementedError(
      config.Error(kKey, "items \"dense\" or \"sparse\"", Quote(kind))
          .message());
}

absl::StatusOr<LayerKind> NumDense(const FamilyConfig& config, int64_t layer,
                                   int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t dense,
                       config.Int("num_dense_layers", 0, /*min=*/0));
  return RoutedIf(layer >= dense);
}

absl::StatusOr<LayerKind> SparseStep(const FamilyConfig& config, int64_t layer,
                                     int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t step, config.Int("decoder_sparse_step"));
  MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> dense,
                       config.Ints("mlp_only_layers"));
  return RoutedIf((layer + 1) % step == 0 && !Contains(dense, layer));
}

absl::StatusOr<LayerKind> Interleaved(const FamilyConfig& config, int64_t layer,
                                      int64_t /*num_layers*/) {
  if (config.Has("moe_layers")) {
    MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> routed,
                         config.Ints("moe_layers"));
    return RoutedIf(Contains(routed, layer));
  }
  MOE_ASSIGN_OR_RETURN(const int64_t step,
                       config.Int("interleave_moe_layer_step"));
  return RoutedIf((layer + 1) % step == 0);
}

absl::StatusOr<LayerKind> Periodic(const FamilyConfig& config, int64_t layer,
                                   int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t experts, config.Int("num_experts"));
  MOE_ASSIGN_OR_RETURN(const int64_t period, config.Int("expert_layer_period"));
  MOE_ASSIGN_OR_RETURN(const int64_t offset,
                       config.Int("expert_layer_offset", 0, /*min=*/0));
  return RoutedIf(experts > 1 && layer % period == offset);
}

absl::StatusOr<LayerKind> Ranged(const FamilyConfig& config, int64_t layer,
                                 int64_t num_layers) {
  MOE_ASSIGN_OR_RETURN(const int64_t step, config.Int("moe_layer_interval"));
  MOE_ASSIGN_OR_RETURN(const int64_t first,
                       config.Int("moe_layer_start_index", 0, /*min=*/0));
  MOE_ASSIGN_OR_RETURN(int64_t last,
                       config.Int("moe_layer_end_index", 0, /*min=*/-1));
  if (last < 0) last = num_layers - 1;
  return RoutedIf((layer + 1) % step == 0 && layer >= first && layer <= last);
}

absl::StatusOr<LayerKind> Pattern(const FamilyConfig& config, int64_t layer,
                                  int64_t num_layers) {
  constexpr char kKey[] = "hybrid_override_pattern";
  MOE_ASSIGN_OR_RETURN(const std::optional<LayerKind> named,
                       NamedKind(config, layer));
  if (named && !config.Has(kKey)) return *named;
  MOE_ASSIGN_OR_RETURN(const std::string pattern, config.String(kKey));
  if (static_cast<int64_t>(pattern.size()) != num_layers) {
    return config.Error(kKey, absl::StrCat(num_layers, " letters"),
                        absl::StrCat(pattern.size()));
  }
  LayerKind kind = LayerKind::kNoFfn;
  const char letter = pattern[static_cast<size_t>(layer)];
  switch (letter) {
    case 'E':
      kind = LayerKind::kRouted;
      break;
    case '-':
      kind = LayerKind::kDense;
      break;
    case 'M':  // state space
    case '*':  // attention
      break;
    default:
      return absl::UnimplementedError(
          config
              .Error(kKey, "letters E, -, M or *",
                     Quote(absl::string_view(&letter, 1)))
              .message());
  }
  if (named && *named != kind) {
    return config.Error(kKey, "what layers_block_type says",
                        absl::StrCat("another kind of layer ", layer));
  }
  return kind;
}

absl::StatusOr<LayerKind> SwitchEncoder(const FamilyConfig& config,
                                        int64_t layer, int64_t num_layers) {
  return Switch(config, layer, num_layers, "encoder_sparse_step",
                "num_sparse_encoder_layers");
}

absl::StatusOr<LayerKind> SwitchDecoder(const FamilyConfig& config,
                                        int64_t layer, int64_t num_layers) {
  return Switch(config, layer, num_layers, "decoder_sparse_step",
                "num_sparse_decoder_layers");
}

absl::StatusOr<LayerKind> NllbEncoder(const FamilyConfig& config, int64_t layer,
                                      int64_t /*num_layers*/) {
  return Nllb(config, layer, "encoder_sparse_step");
}

absl::StatusOr<LayerKind> NllbDecoder(const FamilyConfig& config, int64_t layer,
                                      int64_t /*num_layers*/) {
  return Nllb(config, layer, "decoder_sparse_step");
}

}  // namespace moe

#include "router/models/layer_kinds.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

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
    MOE_ASSIGN_OR_RETURN(const int64_t sparse, config.Int(count_key));
    step = num_layers / sparse;
  }
  if (*step == 0) return LayerKind::kDense;
  return RoutedIf(*step == 1 || layer % *step == 1);
}

absl::StatusOr<LayerKind> Nllb(const FamilyConfig& config, int64_t layer,
                               absl::string_view step_key) {
  MOE_ASSIGN_OR_RETURN(const int64_t step,
                       config.IntOr(step_key, 4, /*layer=*/0, /*min=*/-1));
  return RoutedIf(step > 0 && (layer + 1) % step == 0);
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
                       config.IntOr("first_k_dense_replace", 0));
  MOE_ASSIGN_OR_RETURN(
      const int64_t step,
      config.IntOr("moe_layer_freq", 1, /*layer=*/0, /*min=*/1));
  return RoutedIf(layer >= dense && layer % step == 0);
}

absl::StatusOr<LayerKind> NumDense(const FamilyConfig& config, int64_t layer,
                                   int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t dense,
                       config.Int("num_dense_layers", 0, /*min=*/0));
  return RoutedIf(layer >= dense);
}

absl::StatusOr<LayerKind> SparseStep(const FamilyConfig& config, int64_t layer,
                                     int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(
      const int64_t step,
      config.IntOr("decoder_sparse_step", 1, /*layer=*/0, /*min=*/1));
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
  MOE_ASSIGN_OR_RETURN(
      const int64_t step,
      config.IntOr("interleave_moe_layer_step", 1, /*layer=*/0, /*min=*/1));
  return RoutedIf((layer + 1) % step == 0);
}

absl::StatusOr<LayerKind> Periodic(const FamilyConfig& config, int64_t layer,
                                   int64_t /*num_layers*/) {
  MOE_ASSIGN_OR_RETURN(const int64_t experts, config.Int("num_experts"));
  MOE_ASSIGN_OR_RETURN(
      const int64_t period,
      config.IntOr("expert_layer_period", 2, /*layer=*/0, /*min=*/1));
  MOE_ASSIGN_OR_RETURN(const int64_t offset,
                       config.IntOr("expert_layer_offset", 1));
  return RoutedIf(experts > 1 && layer % period == offset);
}

absl::StatusOr<LayerKind> Ranged(const FamilyConfig& config, int64_t layer,
                                 int64_t num_layers) {
  MOE_ASSIGN_OR_RETURN(
      const int64_t step,
      config.IntOr("moe_layer_interval", 1, /*layer=*/0, /*min=*/1));
  MOE_ASSIGN_OR_RETURN(const int64_t first,
                       config.IntOr("moe_layer_start_index", 1));
  MOE_ASSIGN_OR_RETURN(int64_t last, config.IntOr("moe_layer_end_index", -1,
                                                  /*layer=*/0, /*min=*/-1));
  if (last < 0) last = num_layers - 1;
  return RoutedIf((layer + 1) % step == 0 && layer >= first && layer <= last);
}

absl::StatusOr<LayerKind> Pattern(const FamilyConfig& config, int64_t layer,
                                  int64_t num_layers) {
  constexpr char kKey[] = "hybrid_override_pattern";
  MOE_ASSIGN_OR_RETURN(const std::string pattern, config.StringOr(kKey, ""));
  if (static_cast<int64_t>(pattern.size()) != num_layers) {
    return config.Error(kKey, absl::StrCat(num_layers, " letters"),
                        absl::StrCat(pattern.size()));
  }
  switch (pattern[static_cast<size_t>(layer)]) {
    case 'E':
      return LayerKind::kRouted;
    case '-':
      return LayerKind::kDense;
    default:  // M: state space, *: attention
      return LayerKind::kNoFfn;
  }
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

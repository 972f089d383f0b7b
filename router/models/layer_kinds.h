// Which layers of a model hold a mixture, which a dense FFN, and which neither.
// One function per rule that the families follow, on the config keys that it is
// named after.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "router/models/family_config.h"

namespace moe {

enum class LayerKind : uint8_t { kNoFfn, kDense, kRouted };

// The kind of layer `layer` of `num_layers`.
//
// Errors: INVALID_ARGUMENT naming the key; UNIMPLEMENTED for a kind that is not
// known.
using LayerKindRule = absl::StatusOr<LayerKind> (*)(const FamilyConfig& config,
                                                    int64_t layer,
                                                    int64_t num_layers);

absl::StatusOr<LayerKind> AllDense(const FamilyConfig&, int64_t, int64_t);
absl::StatusOr<LayerKind> AllRouted(const FamilyConfig&, int64_t, int64_t);
// first_k_dense_replace, moe_layer_freq: DeepSeek and its heirs.
absl::StatusOr<LayerKind> FirstDense(const FamilyConfig&, int64_t, int64_t);
// mlp_layer_types, "dense" or "sparse" for each layer, or as FirstDense: later
// heirs.
absl::StatusOr<LayerKind> ListedDense(const FamilyConfig&, int64_t, int64_t);
// num_dense_layers: LFM2.
absl::StatusOr<LayerKind> NumDense(const FamilyConfig&, int64_t, int64_t);
// decoder_sparse_step, mlp_only_layers: the Qwen line.
absl::StatusOr<LayerKind> SparseStep(const FamilyConfig&, int64_t, int64_t);
// moe_layers, interleave_moe_layer_step: Llama 4.
absl::StatusOr<LayerKind> Interleaved(const FamilyConfig&, int64_t, int64_t);
// expert_layer_period, expert_layer_offset: Jamba.
absl::StatusOr<LayerKind> Periodic(const FamilyConfig&, int64_t, int64_t);
// moe_layer_interval, moe_layer_start_index, moe_layer_end_index: ERNIE.
absl::StatusOr<LayerKind> Ranged(const FamilyConfig&, int64_t, int64_t);
// hybrid_override_pattern, a letter per layer, or layers_block_type, a name per
// layer: Nemotron-H.
absl::StatusOr<LayerKind> Pattern(const FamilyConfig&, int64_t, int64_t);
// encoder_sparse_step or num_sparse_encoder_layers, and the same of the
// decoder: Switch Transformers.
absl::StatusOr<LayerKind> SwitchEncoder(const FamilyConfig&, int64_t, int64_t);
absl::StatusOr<LayerKind> SwitchDecoder(const FamilyConfig&, int64_t, int64_t);
// encoder_sparse_step, decoder_sparse_step, counted otherwise: NLLB-MoE.
absl::StatusOr<LayerKind> NllbEncoder(const FamilyConfig&, int64_t, int64_t);
absl::StatusOr<LayerKind> NllbDecoder(const FamilyConfig&, int64_t, int64_t);

}  // namespace moe

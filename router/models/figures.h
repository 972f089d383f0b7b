// The arithmetic of FFN layers: parameters, operations, memory.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "experts/base/weight_format.h"
#include "experts/checkpoint/checkpoint.h"
#include "router/models/model.h"
#include "router/models/model_spec.h"

namespace moe {

// The inner width that classic FFNs have by convention, 4 d_model.
int64_t ConventionalWidth(int64_t d_model);
// The inner width of a gated FFN with as many parameters: it has three matrices
// instead of two, so 2/3 of the width, 8/3 d_model; rounded up to a multiple of
// `multiple_of`, as models do for their kernels' sake. 11008 for 4096.
int64_t EqualGatedWidth(int64_t d_model, int64_t multiple_of = 256);

// What one token costs in a layer, or in several.
struct TokenCost {
  int64_t parameters = 0;  // that take part
  int64_t flops = 0;       // 2 per weight
  int64_t bytes = 0;       // of weights read

  TokenCost& operator+=(const TokenCost& other);
};

// Memory of a set of experts at run time in a weight format; kAuto: the one
// that keeps each matrix as it is stored.
//
// Errors: those of OpenExperts, for kAuto.
absl::StatusOr<int64_t> SetBytes(const Checkpoint& checkpoint,
                                 const ExpertSetSpec& set, WeightFormat format);

// Memory of what a process holds of a layer, in a weight format. What is not an
// expert is float32 in each.
absl::StatusOr<int64_t> LayerBytes(const Checkpoint& checkpoint,
                                   const LayerSpec& layer, WeightFormat format,
                                   const ModelPart& part = {});

// What a token costs in a layer where all its choices are experts with weights.
absl::StatusOr<TokenCost> TokenCostOf(const Checkpoint& checkpoint,
                                      const LayerSpec& layer,
                                      WeightFormat format);

}  // namespace moe

// The parameters of one expert as they are stored: in a checkpoint, or made up.
//
// Thread-safe: plain values.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "experts/checkpoint/stored_matrix.h"

namespace moe {

enum class Projection : uint8_t { kGate, kUp, kDown };
inline constexpr int kNumProjections = 3;

// Whatever packs an expert sees the coding of its weights, and may carry it
// over or widen it.
struct StoredExpert {
  // By Projection, [out, in]; the memory must outlive the expert. Classic
  // experts leave gate_proj empty.
  std::array<StoredMatrix, kNumProjections> weights;
  // By Projection, [out]; empty in experts without biases.
  std::array<std::vector<float>, kNumProjections> biases;

  const StoredMatrix& Weights(Projection projection) const {
    return weights[static_cast<size_t>(projection)];
  }
  absl::Span<const float> Bias(Projection projection) const {
    return biases[static_cast<size_t>(projection)];
  }
};

}  // namespace moe

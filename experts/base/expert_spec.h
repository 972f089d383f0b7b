// What an expert computes, described by data.
//
//   gated    y = W_down * (act(W_gate x + b_gate) (*) (W_up x + b_up +
//   up_offset)) + b_down classic  y = W_down * act(W_up x + b_up) + b_down
//
// Thread-safe: plain values.

#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

enum class Activation : uint8_t {
  kIdentity,  // z                                     (bilinear, when gated)
  kRelu,      // max(z, 0)                             (ReGLU)
  kRelu2,     // max(z, 0)^2
  kGelu,      // z/2 (1 + erf(z / sqrt 2))             (GEGLU)
  kGeluTanh,  // z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))
  kSilu,      // z sigmoid(beta z), beta = 1 unless set (SwiGLU)
  kSigmoid,   // 1 / (1 + exp(-z))                     (GLU)
};

// The activation that a config.json calls `name` ("silu", "gelu_new", "relu2",
// ...), as the transformers library defines the names. Errors: UNIMPLEMENTED
// naming what came.
absl::StatusOr<Activation> ParseActivation(absl::string_view name);
// All such names, for messages.
std::string KnownActivations();
absl::string_view ActivationName(Activation activation);

// The activation and, for gated experts, the product: everything between the
// projections.
struct ActivationSpec {
  Activation activation = Activation::kSilu;
  float beta = 1.0F;  // Swish: z sigmoid(beta z); gpt-oss 1.702
  float limit =
      std::numeric_limits<float>::infinity();  // gate = min(gate, limit), up =
                                               // clamp(up, +-limit), before act
  float up_offset = 0.0F;  // added to up after the clamp; gpt-oss 1
};

// Shapes and arithmetic of one expert; all experts of a layer share it.
struct ExpertSpec {
  int64_t d_model = 0;
  int64_t d_ff = 0;
  bool gated = true;      // has gate_proj
  bool has_bias = false;  // biases on every projection it has
  ActivationSpec activation;

  // Learned parameters of one expert, biases included.
  int64_t parameters() const;
  // Floating point operations of one row through one expert: 2 per weight of
  // the projections.
  int64_t flops_per_row() const;
};

}  // namespace moe

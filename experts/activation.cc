#include "experts/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moe {

float Activate(const ActivationSpec& spec, float z) {
  switch (spec.activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return z < 0.0F ? 0.0F : z;  // keeps NaN
    case Activation::kRelu2:
      return z < 0.0F ? 0.0F : z * z;
    case Activation::kGelu:
      return 0.5F * z *
             (1.0F + std::erf(z * (1.0F / std::numbers::sqrt2_v<float>)));
    case Activation::kGeluTanh: {
      constexpr float kSqrt2OverPi = 0.7978845608028654F;
      return 0.5F * z *
             (1.0F + std::tanh(kSqrt2OverPi * (z + 0.044715F * z * z * z)));
    }
    case Activation::kSilu:
      return z / (1.0F + std::exp(-spec.beta * z));
    case Activation::kSigmoid:
      return 1.0F / (1.0F + std::exp(-z));
  }
  return z;
}

void ActivateGated(const ActivationSpec& spec, const float* gate,
                   const float* up, int64_t size, float* h) {
  for (int64_t i = 0; i < size; ++i) {
    const float g = gate[i] > spec.limit ? spec.limit : gate[i];
    const float u = up[i] > spec.limit    ? spec.limit
                    : up[i] < -spec.limit ? -spec.limit
                                          : up[i];
    h[i] = Activate(spec, g) * (u + spec.up_offset);
  }
}

void ActivateClassic(const ActivationSpec& spec, const float* up, int64_t size,
                     float* h) {
  for (int64_t i = 0; i < size; ++i) h[i] = Activate(spec, up[i]);
}

}  // namespace moe

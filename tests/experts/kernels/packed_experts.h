// Packed experts with random weights, and what they compute, in double
// precision.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/expert_spec.h"
#include "experts/kernels/packed_matrix.h"
#include "experts/kernels/run_experts.h"

namespace moe {

inline std::vector<float> RandomFloats(int64_t size, float sigma,
                                       uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0F, sigma);
  std::vector<float> values(size);
  for (float& value : values) value = normal(engine);
  return values;
}

// Row-major floats, [n, k], as a matrix to pack.
inline auto ReaderOf(const std::vector<float>& weights, int64_t k) {
  return [&weights, k](int64_t row, int64_t col, absl::Span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = weights[row * k + col + static_cast<int64_t>(i)];
    }
  };
}

// The codes code_of(row, col) as a matrix to carry over.
template <class CodeOf>
auto CodeReaderOf(const PackedLayout& layout, CodeOf code_of) {
  const bool nibbles = layout.steps_per_line() == 8;
  return [nibbles, code_of](int64_t row, int64_t col, int64_t count,
                            uint8_t* out) {
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t code = code_of(row, col + i);
      if (!nibbles) {
        out[i] = code;
      } else if (i % 2 == 0) {
        out[i / 2] = static_cast<uint8_t>(code | 0x50U);  // any upper half
      } else {
        out[i / 2] = static_cast<uint8_t>((out[i / 2] & 0xfU) | code << 4U);
      }
    }
  };
}

// Owns one expert: the weights it was made from and the packed copies.
class TestExpert {
 public:
  TestExpert(const ExpertSpec& spec, WeightFormat format, uint64_t seed)
      : spec_(spec) {
    const float sigma = 1.0F / std::sqrt(static_cast<float>(spec.d_model));
    const int64_t size = spec.d_ff * spec.d_model;
    gate = RandomFloats(spec.gated ? size : 0, sigma, seed * 8);
    up = RandomFloats(size, sigma, seed * 8 + 1);
    down = RandomFloats(size, 1.0F / std::sqrt(static_cast<float>(spec.d_ff)),
                        seed * 8 + 2);
    if (spec.has_bias) {
      gate_bias = RandomFloats(spec.gated ? spec.d_ff : 0, 0.5F, seed * 8 + 3);
      up_bias = RandomFloats(spec.d_ff, 0.5F, seed * 8 + 4);
      down_bias = RandomFloats(spec.d_model, 0.5F, seed * 8 + 5);
    }
    Pack(format);
  }

  // Replaces the weights by the packed ones, widened.
  void TakePackedWeights() {
    const int64_t per_output = spec_.gated ? 2 : 1;
    const auto take = [](const PackedMatrix& matrix, int64_t panel,
                         int64_t column, int64_t k, float* row) {
      for (int64_t i = 0; i < k; ++i) {
        row[i] = UnpackedElement(matrix.layout, matrix.Panel(panel), column, i);
      }
    };
    for (int64_t i = 0; i < spec_.d_ff; ++i) {
      const int64_t panel = i / kPanelWidth * per_output;
      const int64_t column = i % kPanelWidth;
      if (spec_.gated) {
        take(packed.up, panel, column, spec_.d_model, &gate[i * spec_.d_model]);
      }
      take(packed.up, panel + per_output - 1, column, spec_.d_model,
           &up[i * spec_.d_model]);
    }
    for (int64_t i = 0; i < spec_.d_model; ++i) {
      take(packed.down, i / kPanelWidth, i % kPanelWidth, spec_.d_ff,
           &down[i * spec_.d_ff]);
    }
  }

  std::vector<float> gate, up, down;  // [d_ff, d_model] twice, [d_model, d_ff]
  std::vector<float> gate_bias, up_bias, down_bias;
  PackedExpert packed;

 private:
  void Pack(WeightFormat format) {
    const int64_t per_output = spec_.gated ? 2 : 1;
    const auto up_layout = PackedLayout::For(format, spec_.d_ff, spec_.d_model);
    const auto down_layout =
        PackedLayout::For(format, spec_.d_model, spec_.d_ff);
    uint8_t* up_data =
        up_data_.Grow(per_output * up_layout.bytes() + kPackedSlack);
    uint8_t* down_data = down_data_.Grow(down_layout.bytes() + kPackedSlack);
    packed.up = {up_layout, up_data, per_output * up_layout.panels()};
    packed.down = {down_layout, down_data, down_layout.panels()};
    for (int64_t p = 0; p < packed.up.panels; ++p) {
      const bool is_gate = spec_.gated && p % 2 == 0;
      PackPanel(up_layout, ReaderOf(is_gate ? gate : up, spec_.d_model),
                p / per_output, up_data + p * up_layout.panel_bytes());
    }
    for (int64_t p = 0; p < packed.down.panels; ++p) {
      PackPanel(down_layout, ReaderOf(down, spec_.d_ff), p,
                down_data + p * down_layout.panel_bytes());
    }
    if (!spec_.has_bias) return;
    packed_up_bias_.assign(packed.up.panels * kPanelWidth, 0.0F);
    packed_down_bias_.assign(packed.down.panels * kPanelWidth, 0.0F);
    for (int64_t i = 0; i < spec_.d_ff; ++i) {
      const int64_t panel = i / kPanelWidth * per_output;
      const int64_t column = i % kPanelWidth;
      if (spec_.gated) {
        packed_up_bias_[panel * kPanelWidth + column] = gate_bias[i];
      }
      packed_up_bias_[(panel + per_output - 1) * kPanelWidth + column] =
          up_bias[i];
    }
    std::copy(down_bias.begin(), down_bias.end(), packed_down_bias_.begin());
    packed.up_bias = packed_up_bias_.data();
    packed.down_bias = packed_down_bias_.data();
  }

  const ExpertSpec spec_;
  AlignedBuffer<uint8_t> up_data_, down_data_;
  std::vector<float> packed_up_bias_, packed_down_bias_;
};

// A value and how far a float computation may be from it.
struct Bounded {
  double value = 0;
  double error = 0;
};

inline double ReferenceActivation(const ActivationSpec& spec, double z) {
  switch (spec.activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return z < 0 ? 0 : z;
    case Activation::kRelu2:
      return z < 0 ? 0 : z * z;
    case Activation::kGelu:
      return z / 2 * std::erfc(-z / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return z / (1 + std::exp(-2 * std::sqrt(2 / M_PI) *
                               (z + 0.044715 * z * z * z)));
    case Activation::kSilu:
      return z / (1 + std::exp(-spec.beta * z));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-z));
  }
  return 0;
}

// sum(w[i] * x[i]) + bias. Rounding errors of a chain of n operations add up
// like a random walk: 4 sigma of it, plus what x itself may be off.
inline Bounded ReferenceDot(const float* w, absl::Span<const Bounded> x,
                            double bias) {
  double sum = bias;
  double magnitude = std::fabs(bias);
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = w[i];
    sum += weight * x[i].value;
    magnitude += std::fabs(weight * x[i].value);
    error += std::fabs(weight) * x[i].error;
  }
  const double steps = 4 + 4 * std::sqrt(static_cast<double>(x.size()));
  return {sum, error + magnitude * 0x1p-24 * steps};
}

// What the expert computes from one row.
inline std::vector<Bounded> ReferenceExpert(const ExpertSpec& spec,
                                            const TestExpert& expert,
                                            const float* row, float scale) {
  const ActivationSpec& act = spec.activation;
  std::vector<Bounded> x(spec.d_model);
  for (int64_t k = 0; k < spec.d_model; ++k) x[k] = {row[k] * scale, 0};
  std::vector<Bounded> inner(spec.d_ff);
  // No activation is steeper than this for the sizes of z that occur.
  const double steepest = act.activation == Activation::kRelu2 ? 20 : 1.2;
  const double ulps = 8 * 0x1p-24;
  for (int64_t i = 0; i < spec.d_ff; ++i) {
    Bounded up = ReferenceDot(&expert.up[i * spec.d_model], x,
                              spec.has_bias ? expert.up_bias[i] : 0.0);
    if (!spec.gated) {
      const double value = ReferenceActivation(act, up.value);
      inner[i] = {value, up.error * steepest + std::fabs(value) * ulps};
      continue;
    }
    Bounded gate = ReferenceDot(&expert.gate[i * spec.d_model], x,
                                spec.has_bias ? expert.gate_bias[i] : 0.0);
    gate.value = std::fmin(gate.value, act.limit);
    up.value = std::fmax(std::fmin(up.value, act.limit), -act.limit);
    up.value += act.up_offset;
    const double value = ReferenceActivation(act, gate.value);
    inner[i] = {value * up.value,
                gate.error * steepest * (std::fabs(up.value) + up.error) +
                    std::fabs(value) * up.error +
                    (std::fabs(value) + 0x1p-100) * std::fabs(up.value) * ulps};
  }
  std::vector<Bounded> out(spec.d_model);
  for (int64_t i = 0; i < spec.d_model; ++i) {
    out[i] = ReferenceDot(&expert.down[i * spec.d_ff], inner,
                          spec.has_bias ? expert.down_bias[i] : 0.0);
  }
  return out;
}

}  // namespace moe

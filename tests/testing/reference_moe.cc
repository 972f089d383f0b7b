#include "tests/testing/reference_moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

namespace moe {
namespace {

// One rounding to float32 moves a value by at most half of this, relatively:
// twice the room that correct rounding needs, once for all.
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The value after a further float32 operation of a few units in the last place.
Bounded Rounded(double value, double error, double ulps = 1.0) {
  return {value, error + ulps * kEpsilon * std::fabs(value)};
}

Bounded Product(Bounded a, Bounded b) {
  return Rounded(a.value * b.value, std::fabs(a.value) * b.error +
                                        std::fabs(b.value) * a.error +
                                        a.error * b.error);
}

// w . x + bias, summed in any order: each product takes part in at most n + 1
// roundings.
Bounded Dot(const float* w, absl::Span<const Bounded> x, double bias) {
  Bounded sum{bias, 0.0};
  double magnitude = std::fabs(bias);
  for (size_t i = 0; i < x.size(); ++i) {
    const double product = w[i] * x[i].value;
    sum.value += product;
    sum.error += std::fabs(w[i]) * x[i].error;
    magnitude += std::fabs(product);
  }
  sum.error += static_cast<double>(x.size() + 1) * kEpsilon * magnitude;
  return sum;
}

double Sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

Bounded Sigmoid(Bounded z) {
  // The slope is at most 1/4; rounding the exponent's argument costs |z|.
  return Rounded(Sigmoid(z.value), z.error / 4, 4 + std::fabs(z.value));
}

Bounded Act(const ActivationSpec& spec, Bounded z) {
  const double x = z.value;
  switch (spec.activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return {std::max(x, 0.0), z.error};
    case Activation::kRelu2: {
      const Bounded positive{std::max(x, 0.0), z.error};
      return Product(positive, positive);
    }
    case Activation::kGelu:
    case Activation::kGeluTanh: {
      const double y =
          spec.activation == Activation::kGelu
              ? x / 2 * (1 + std::erf(x / std::numbers::sqrt2))
              : x / 2 *
                    (1 + std::tanh(std::sqrt(2 / std::numbers::pi) *
                                   (x + 0.044715 * x * x * x)));
      // Slope below 1.13; 1 + erf cancels, for an error relative to x.
      return Rounded(y, 1.13 * z.error + 4 * kEpsilon * std::fabs(x), 8);
    }
    case Activation::kSilu:
      // Slope below 1.1.
      return Rounded(x * Sigmoid(spec.beta * x), 1.1 * z.error,
                     6 + std::fabs(spec.beta * x));
    case Activation::kSigmoid:
      return Sigmoid(z);
  }
  return z;
}

std::vector<Bounded> Project(const ReferenceExpert& expert,
                             Projection projection,
                             absl::Span<const Bounded> x) {
  const auto& weights = expert.weights[static_cast<int>(projection)];
  const auto& biases = expert.biases[static_cast<int>(projection)];
  std::vector<Bounded> y(weights.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    y[row] = Dot(weights.data() + row * x.size(), x,
                 biases.empty() ? 0.0 : biases[row]);
  }
  return y;
}

std::vector<Bounded> Exact(const float* row, int64_t size) {
  std::vector<Bounded> x(static_cast<size_t>(size));
  for (size_t i = 0; i < x.size(); ++i) x[i].value = row[i];
  return x;
}

}  // namespace

std::vector<float> RandomFloats(int64_t size, float limit, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-limit, limit);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = uniform(generator);
  return values;
}

std::vector<float> GridFloats(int64_t size, float limit, uint32_t seed) {
  std::vector<float> values = RandomFloats(size, 8.0F, seed);
  for (float& value : values) value = std::floor(value) * (limit / 8.0F);
  return values;
}

ReferenceExpert RandomExpert(const ExpertSpec& spec, uint32_t seed) {
  // Keeps outputs at about the size of the inputs.
  const float in = std::sqrt(3.0F / static_cast<float>(spec.d_model));
  const float inner = std::sqrt(3.0F / static_cast<float>(spec.d_ff));
  const int64_t size = spec.d_ff * spec.d_model;
  ReferenceExpert expert;
  if (spec.gated) expert.weights[0] = RandomFloats(size, in, seed * 6);
  expert.weights[1] = RandomFloats(size, in, seed * 6 + 1);
  expert.weights[2] = RandomFloats(size, inner, seed * 6 + 2);
  if (spec.has_bias) {
    if (spec.gated) {
      expert.biases[0] = RandomFloats(spec.d_ff, 0.5F, seed * 6 + 3);
    }
    expert.biases[1] = RandomFloats(spec.d_ff, 0.5F, seed * 6 + 4);
    expert.biases[2] = RandomFloats(spec.d_model, 0.5F, seed * 6 + 5);
  }
  return expert;
}

std::vector<Bounded> RunReferenceExpert(const ExpertSpec& spec,
                                        const ReferenceExpert& expert,
                                        absl::Span<const Bounded> x,
                                        double inner_epsilon) {
  std::vector<Bounded> inner = Project(expert, Projection::kUp, x);
  if (spec.gated) {
    const std::vector<Bounded> gate = Project(expert, Projection::kGate, x);
    const double limit = spec.activation.limit;
    for (size_t i = 0; i < inner.size(); ++i) {
      const Bounded g = {std::min(gate[i].value, limit), gate[i].error};
      const Bounded u = Rounded(
          std::clamp(inner[i].value, -limit, limit) + spec.activation.up_offset,
          inner[i].error);
      inner[i] = Product(Act(spec.activation, g), u);
    }
  } else {
    for (Bounded& value : inner) value = Act(spec.activation, value);
  }
  for (Bounded& h : inner) {
    h.error += inner_epsilon * (std::fabs(h.value) + h.error);
  }
  return Project(expert, Projection::kDown, inner);
}

std::vector<StoredExpert> StoreExperts(
    const ExpertSpec& spec, absl::Span<const ReferenceExpert> experts) {
  std::vector<StoredExpert> stored;
  for (const ReferenceExpert& expert : experts) {
    StoredExpert& to = stored.emplace_back();
    for (size_t p = 0; p < kNumProjections; ++p) {
      const bool down = static_cast<Projection>(p) == Projection::kDown;
      StoredMatrix& matrix = to.weights[p];
      matrix.rows = down ? spec.d_model : spec.d_ff;
      matrix.cols = down ? spec.d_ff : spec.d_model;
      matrix.row_stride = matrix.cols;
      matrix.data = reinterpret_cast<const uint8_t*>(expert.weights[p].data());
      to.biases[p] = expert.biases[p];
    }
  }
  return stored;
}

ReferenceRouting RunReferenceRouter(const ReferenceMoe& moe,
                                    ConstMatrix hidden_states) {
  const auto num_experts = static_cast<size_t>(moe.num_experts());
  ReferenceRouting routing{.top_k = moe.top_k, .ids = {}, .weights = {}};
  for (int64_t t = 0; t < hidden_states.rows(); ++t) {
    const auto x = Exact(hidden_states.Row(t), moe.spec.d_model);
    std::vector<double> logits;
    for (size_t e = 0; e < num_experts; ++e) {
      logits.push_back(Dot(moe.gate.data() + e * x.size(), x, 0.0).value);
    }
    // Both scores grow with the logit: choose by the logit itself.
    std::vector<int32_t> order;
    for (size_t e = 0; e < num_experts; ++e) {
      order.push_back(static_cast<int32_t>(e));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(moe.top_k));

    const double largest = *std::max_element(logits.begin(), logits.end());
    double all = 0.0;
    for (const double z : logits) all += std::exp(z - largest);
    std::vector<Bounded> weights;
    double chosen = 0.0;
    for (const int32_t id : order) {
      const double z = logits[static_cast<size_t>(id)];
      const double score = moe.score == ReferenceMoe::Score::kSigmoid
                               ? Sigmoid(z)
                               : std::exp(z - largest) / all;
      // Sum over all experts, and the rounding of the exponent's argument.
      weights.push_back(Rounded(score, 0.0,
                                static_cast<double>(num_experts) + 4 +
                                    std::fabs(z) + std::fabs(z - largest)));
      chosen += score;
    }
    // Numerator and sum are off by about as much, relatively, as the worst
    // score.
    double worst = 0.0;
    for (const Bounded& w : weights) worst = std::max(worst, w.error / w.value);
    for (Bounded& w : weights) {
      if (moe.renormalize) {
        w.value /= chosen;
        w.error = w.value *
                  (2 * worst + static_cast<double>(moe.top_k + 1) * kEpsilon);
      }
      w = Rounded(w.value * moe.scale, w.error * std::fabs(moe.scale));
    }
    routing.ids.insert(routing.ids.end(), order.begin(), order.end());
    routing.weights.insert(routing.weights.end(), weights.begin(),
                           weights.end());
  }
  return routing;
}

std::vector<Bounded> RunReferenceMoe(const ReferenceMoe& moe,
                                     const ReferenceRouting& routing,
                                     ConstMatrix hidden_states) {
  std::vector<Bounded> out;
  for (int64_t t = 0; t < hidden_states.rows(); ++t) {
    const auto x = Exact(hidden_states.Row(t), moe.spec.d_model);
    std::vector<Bounded> sum(x.size());
    const auto add = [&sum](Bounded weight, absl::Span<const Bounded> y) {
      for (size_t i = 0; i < sum.size(); ++i) {
        const Bounded term = Product(weight, y[i]);
        sum[i] = Rounded(sum[i].value + term.value, sum[i].error + term.error);
      }
    };
    for (int64_t j = 0; j < routing.top_k; ++j) {
      const auto pair = static_cast<size_t>(t * routing.top_k + j);
      const int32_t id = routing.ids[pair];
      const Bounded weight = routing.weights[pair];
      if (id < 0) continue;
      if (id >= static_cast<int32_t>(moe.experts.size())) {
        add(weight, x);
        continue;
      }
      const ReferenceExpert& expert = moe.experts[static_cast<size_t>(id)];
      if (moe.weight_on_input) {
        std::vector<Bounded> weighted;
        for (const Bounded& value : x) {
          weighted.push_back(Product(weight, value));
        }
        add({1.0, 0.0}, RunReferenceExpert(moe.spec, expert, weighted));
      } else {
        add(weight, RunReferenceExpert(moe.spec, expert, x));
      }
    }
    if (moe.shared_spec.has_value()) {
      const Bounded weight = moe.shared_gate.empty()
                                 ? Bounded{1.0, 0.0}
                                 : Sigmoid(Dot(moe.shared_gate.data(), x, 0.0));
      add(weight, RunReferenceExpert(*moe.shared_spec, moe.shared, x));
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

::testing::AssertionResult IsWithin(ConstMatrix got,
                                    absl::Span<const Bounded> want) {
  if (got.rows() * got.cols() != static_cast<int64_t>(want.size())) {
    return ::testing::AssertionFailure() << "got " << got.rows() * got.cols()
                                         << " values, want " << want.size();
  }
  double worst = 1.0;  // error relative to what is allowed
  int64_t worst_row = -1;
  int64_t worst_col = -1;
  for (int64_t r = 0; r < got.rows(); ++r) {
    for (int64_t c = 0; c < got.cols(); ++c) {
      const Bounded& w = want[static_cast<size_t>(r * got.cols() + c)];
      const double error = std::fabs(got.Row(r)[c] - w.value);
      const double excess = error <= w.error    ? 0.0
                            : std::isnan(error) ? kInfinity
                                                : error / w.error;
      if (excess <= worst) continue;
      worst = excess;
      worst_row = r;
      worst_col = c;
    }
  }
  if (worst_row < 0) return ::testing::AssertionSuccess();
  const Bounded& w =
      want[static_cast<size_t>(worst_row * got.cols() + worst_col)];
  return ::testing::AssertionFailure()
         << "worst at [" << worst_row << ", " << worst_col << "]: got "
         << got.Row(worst_row)[worst_col] << ", want " << w.value << " +- "
         << w.error;
}

}  // namespace moe

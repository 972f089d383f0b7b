#include "router/gate.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"

namespace moe {
namespace {

std::vector<float> Logits(const Gate& gate, ConstMatrix hidden_states,
                          int num_threads = 1) {
  Executor executor(num_threads);
  std::vector<float> logits(
      static_cast<size_t>(hidden_states.rows() * gate.outputs()), -7.0F);
  ExpertWorkspace workspace(&executor);
  gate.Forward(hidden_states, workspace,
               Matrix(logits.data(), hidden_states.rows(), gate.outputs()));
  return logits;
}

// On the grid the sums are exact: no tolerance is needed.
std::vector<float> WantLogits(ConstMatrix hidden_states, ConstMatrix weights,
                              const std::vector<float>& bias) {
  std::vector<float> want;
  for (int64_t t = 0; t < hidden_states.rows(); ++t) {
    for (int64_t e = 0; e < weights.rows(); ++e) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(e)];
      for (int64_t c = 0; c < weights.cols(); ++c) {
        sum += static_cast<double>(hidden_states.Row(t)[c]) * weights.Row(e)[c];
      }
      want.push_back(static_cast<float>(sum));
    }
  }
  return want;
}

TEST(GateTest, IsTheProductWithTheWeights) {
  for (const int64_t outputs : {1, 5, 40}) {
    for (const int64_t d_model : {1, 8, 96}) {
      const auto w = GridFloats(outputs * d_model, 0.25F, 1);
      const ConstMatrix weights(w.data(), outputs, d_model);
      const Gate gate(weights, {});
      EXPECT_EQ(gate.outputs(), outputs);
      EXPECT_EQ(gate.d_model(), d_model);
      EXPECT_EQ(gate.weights_bytes(), outputs * d_model * 4);
      for (int64_t tokens = 0; tokens <= 17; ++tokens) {
        const auto x = GridFloats(tokens * d_model, 1.0F, 2);
        const ConstMatrix hidden_states(x.data(), tokens, d_model);
        ASSERT_EQ(Logits(gate, hidden_states),
                  WantLogits(hidden_states, weights, {}));
      }
    }
  }
}

TEST(GateTest, AddsTheBias) {
  const auto w = GridFloats(5 * 8, 0.25F, 1);
  const auto x = GridFloats(3 * 8, 1.0F, 2);
  const auto bias = GridFloats(5, 2.0F, 3);
  const ConstMatrix weights(w.data(), 5, 8);
  const ConstMatrix hidden_states(x.data(), 3, 8);
  const Gate gate(weights, bias);
  EXPECT_EQ(gate.weights_bytes(), (5 * 8 + 5) * 4);
  EXPECT_EQ(Logits(gate, hidden_states),
            WantLogits(hidden_states, weights, bias));
}

TEST(GateTest, CopiesStridedWeightsAndReadsStridedRows) {
  auto w = GridFloats(5 * 11, 0.25F, 1);
  const auto x = GridFloats(3 * 13, 1.0F, 2);
  const ConstMatrix weights(w.data(), 5, 8, 11);
  const ConstMatrix hidden_states(x.data(), 3, 8, 13);
  const std::vector<float> want = WantLogits(hidden_states, weights, {});
  const Gate gate(weights, {});
  w.assign(w.size(), 1e6F);
  EXPECT_EQ(Logits(gate, hidden_states), want);
}

TEST(GateTest, StaysUsableAfterAMove) {
  const auto w = GridFloats(5 * 8, 0.25F, 1);
  const auto x = GridFloats(3 * 8, 1.0F, 2);
  const ConstMatrix weights(w.data(), 5, 8);
  Gate first(weights, {});
  const Gate gate = std::move(first);
  const ConstMatrix hidden_states(x.data(), 3, 8);
  EXPECT_EQ(Logits(gate, hidden_states),
            WantLogits(hidden_states, weights, {}));
}

TEST(GateTest, NumberOfThreadsDoesNotChangeTheBytes) {
  const auto w = RandomFloats(40 * 96, 1.0F, 1);
  const auto x = RandomFloats(200 * 96, 1.0F, 2);
  const Gate gate(ConstMatrix(w.data(), 40, 96), {});
  const ConstMatrix hidden_states(x.data(), 200, 96);
  const std::vector<float> want = Logits(gate, hidden_states);
  for (const int num_threads : {2, 3}) {
    EXPECT_EQ(Logits(gate, hidden_states, num_threads), want);
  }
}

}  // namespace
}  // namespace moe

#include "experts/linear.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"

namespace moe {
namespace {

std::vector<float> Product(const Linear& linear, ConstMatrix rows,
                           int num_threads = 1) {
  Executor executor(num_threads);
  std::vector<float> out(static_cast<size_t>(rows.rows() * linear.outputs()),
                         -7.0F);
  ExpertWorkspace workspace(&executor);
  linear.Forward(rows, workspace,
                 Matrix(out.data(), rows.rows(), linear.outputs()));
  return out;
}

// On the grid the sums are exact: no tolerance is needed.
std::vector<float> Want(ConstMatrix rows, ConstMatrix weights,
                        const std::vector<float>& bias) {
  std::vector<float> want;
  for (int64_t t = 0; t < rows.rows(); ++t) {
    for (int64_t e = 0; e < weights.rows(); ++e) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(e)];
      for (int64_t c = 0; c < weights.cols(); ++c) {
        sum += static_cast<double>(rows.Row(t)[c]) * weights.Row(e)[c];
      }
      want.push_back(static_cast<float>(sum));
    }
  }
  return want;
}

TEST(LinearTest, IsTheProductWithTheWeights) {
  for (const int64_t outputs : {1, 5, 40}) {
    for (const int64_t inputs : {1, 8, 96}) {
      const auto w = GridFloats(outputs * inputs, 0.25F, 1);
      const ConstMatrix weights(w.data(), outputs, inputs);
      const Linear linear(weights, {});
      EXPECT_EQ(linear.outputs(), outputs);
      EXPECT_EQ(linear.inputs(), inputs);
      EXPECT_EQ(linear.weights_bytes(),
                (outputs + 15) / 16 * 16 * inputs * 4);  // whole panels
      for (int64_t tokens = 0; tokens <= 17; ++tokens) {
        const auto x = GridFloats(tokens * inputs, 1.0F, 2);
        const ConstMatrix rows(x.data(), tokens, inputs);
        ASSERT_EQ(Product(linear, rows), Want(rows, weights, {}));
      }
    }
  }
}

TEST(LinearTest, AddsTheBias) {
  const auto w = GridFloats(5 * 8, 0.25F, 1);
  const auto x = GridFloats(3 * 8, 1.0F, 2);
  const auto bias = GridFloats(5, 2.0F, 3);
  const ConstMatrix weights(w.data(), 5, 8);
  const ConstMatrix rows(x.data(), 3, 8);
  const Linear linear(weights, bias);
  EXPECT_EQ(linear.weights_bytes(), (16 * 8 + 16) * 4);  // whole panels
  EXPECT_EQ(Product(linear, rows), Want(rows, weights, bias));
}

TEST(LinearTest, CopiesStridedWeightsAndReadsStridedRows) {
  auto w = GridFloats(5 * 11, 0.25F, 1);
  const auto x = GridFloats(3 * 13, 1.0F, 2);
  const ConstMatrix weights(w.data(), 5, 8, 11);
  const ConstMatrix rows(x.data(), 3, 8, 13);
  const std::vector<float> want = Want(rows, weights, {});
  const Linear linear(weights, {});
  w.assign(w.size(), 1e6F);
  EXPECT_EQ(Product(linear, rows), want);
}

TEST(LinearTest, StaysUsableAfterAMove) {
  const auto w = GridFloats(5 * 8, 0.25F, 1);
  const auto x = GridFloats(3 * 8, 1.0F, 2);
  const ConstMatrix weights(w.data(), 5, 8);
  Linear first(weights, {});
  const Linear linear = std::move(first);
  const ConstMatrix rows(x.data(), 3, 8);
  EXPECT_EQ(Product(linear, rows), Want(rows, weights, {}));
}

TEST(LinearTest, NumberOfThreadsDoesNotChangeTheBytes) {
  const auto w = RandomFloats(40 * 96, 1.0F, 1);
  const auto x = RandomFloats(200 * 96, 1.0F, 2);
  const Linear linear(ConstMatrix(w.data(), 40, 96), {});
  const ConstMatrix rows(x.data(), 200, 96);
  const std::vector<float> want = Product(linear, rows);
  for (const int num_threads : {2, 3}) {
    EXPECT_EQ(Product(linear, rows, num_threads), want);
  }
}

}  // namespace
}  // namespace moe

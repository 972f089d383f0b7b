// The textbook example of a feed-forward layer, d_model 3 and d_ff 6, by hand:
//
//   x = [0.5, -0.3, 0.8]
//   h = W_up x    = [0.10, -0.55, 0.95, 0.50, 0.30, -1.10]
//   a = ReLU(h)   = [0.10,  0,    0.95, 0.50, 0.30,  0   ]   four of six stay
//   y = W_down a  = [-0.02, 0.49, 0.28]
//
// Read as a memory: row i of W_up is a key, column i of W_down its value, and y
// is the sum of the values, each weighed by how well its key matches x.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "experts/activation.h"
#include "experts/expert_workspace.h"
#include "experts/local_expert_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

constexpr float kTolerance = 1e-6F;
constexpr ExpertSpec kSpec = {.d_model = 3,
                              .d_ff = 6,
                              .gated = false,
                              .activation = {.activation = Activation::kRelu}};

constexpr std::array<float, 3> kX = {0.5F, -0.3F, 0.8F};
constexpr std::array<float, 6> kH = {0.10F, -0.55F, 0.95F,
                                     0.50F, 0.30F,  -1.10F};

constexpr std::array<float, 18> kUp = {
    0.2F,  0.0F,  0.0F,   // 0.10
    -0.3F, 0.0F,  -0.5F,  // -0.55
    0.3F,  0.0F,  1.0F,   // 0.95
    1.0F,  0.0F,  0.0F,   // 0.50
    0.0F,  -1.0F, 0.0F,   // 0.30
    -0.6F, 0.0F,  -1.0F,  // -1.10
};
constexpr std::array<float, 18> kDown = {
    0.1F, 0.7F,  0.0F, 0.0F, -0.1F, 0.9F,   //
    0.0F, -0.8F, 0.4F, 0.1F, 0.2F,  0.6F,   //
    0.0F, 0.5F,  0.0F, 0.5F, 0.1F,  -0.4F,  //
};

std::vector<float> Ffn(absl::Span<const float> down,
                       absl::Span<const float> x) {
  ReferenceExpert expert;
  expert.weights[static_cast<int>(Projection::kUp)] = {kUp.begin(), kUp.end()};
  expert.weights[static_cast<int>(Projection::kDown)] = {down.begin(),
                                                         down.end()};
  Executor executor(1);
  ExpertWorkspace workspace(&executor);
  const auto shard = LocalExpertShard::Load(
      kSpec, StoreExperts(kSpec, {expert}), WeightFormat::kF32, executor);
  const std::vector<int32_t> offsets = {0, 1};
  const std::vector<int32_t> rows = {0};
  std::vector<float> y(3);
  ExpertFailures failures;
  MOE_EXPECT_OK(shard->Forward({.hidden_states = ConstMatrix(x.data(), 1, 3),
                                .offsets = offsets,
                                .rows = rows,
                                .input_scales = {}},
                               workspace, Matrix(y.data(), 1, 3), failures));
  return y;
}

TEST(ClassicFfnExampleTest, KeysMatchTheInput) {
  for (size_t i = 0; i < kH.size(); ++i) {
    const float* key = &kUp[3 * i];
    EXPECT_NEAR(key[0] * kX[0] + key[1] * kX[1] + key[2] * kX[2], kH[i],
                kTolerance);
  }
}

TEST(ClassicFfnExampleTest, ReluKeepsFourOfSix) {
  std::vector<float> a(kH.size());
  ActivateClassic(kSpec.activation, kH.data(), 6, a.data());
  EXPECT_THAT(a, ElementsAre(0.10F, 0.0F, 0.95F, 0.50F, 0.30F, 0.0F));
}

TEST(ClassicFfnExampleTest, TheOutputIsTheWeighedSumOfTheValues) {
  EXPECT_THAT(Ffn(kDown, kX), ElementsAre(FloatNear(-0.02F, kTolerance),
                                          FloatNear(0.49F, kTolerance),
                                          FloatNear(0.28F, kTolerance)));
}

TEST(ClassicFfnExampleTest, ValuesOfSilentKeysDoNotMatter) {
  std::vector<float> changed(kDown.begin(), kDown.end());
  for (const size_t silent : {size_t{1}, size_t{5}}) {
    for (size_t row = 0; row < 3; ++row) changed[6 * row + silent] = 123.0F;
  }
  EXPECT_EQ(Ffn(changed, kX), Ffn(kDown, kX));
}

TEST(ClassicFfnExampleTest, EditingOneValueMovesTheOutputAsItsKeyMatches) {
  std::vector<float> changed(kDown.begin(), kDown.end());
  changed[2] += 1.0F;  // first component of the third value; its key gives 0.95
  EXPECT_NEAR(Ffn(changed, kX)[0] - Ffn(kDown, kX)[0], 0.95F, kTolerance);
}

}  // namespace
}  // namespace moe

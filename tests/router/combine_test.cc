#include "router/combine.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A batch whose experts return their (scaled) input, combined.
std::vector<float> CombineInputs(MatrixView<const int32_t> ids,
                                 ConstMatrix weights, int64_t num_ffn_experts,
                                 WeightPlacement placement,
                                 ConstMatrix hidden_states) {
  Dispatch dispatch;
  dispatch.Build(ids, weights, num_ffn_experts, placement);
  const ExpertBatch batch = dispatch.Batch(hidden_states);
  const int64_t d_model = hidden_states.cols();
  std::vector<float> outputs;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const float scale = batch.input_scales.empty() ? 1 : batch.input_scales[i];
    for (int64_t c = 0; c < d_model; ++c) {
      outputs.push_back(scale * hidden_states.Row(batch.rows[i])[c]);
    }
  }
  std::vector<float> out(static_cast<size_t>(hidden_states.rows() * d_model),
                         kNaN);
  Combine(dispatch, weights, placement,
          ConstMatrix(outputs.data(), dispatch.num_assignments(), d_model),
          hidden_states, 0, hidden_states.rows(),
          Matrix(out.data(), hidden_states.rows(), d_model));
  return out;
}

TEST(CombineTest, ExpertsThatReturnTheirInputGiveTheWeightedInput) {
  constexpr int64_t kTokens = 23;
  constexpr int64_t kTopK = 5;
  constexpr int64_t kNumExperts = 9;
  constexpr int64_t kDModel = 17;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    // On a grid all sums and products are exact.
    const auto x = GridFloats(kTokens * kDModel, 1.0F, seed);
    const auto weights = GridFloats(kTokens * kTopK, 1.0F, seed + 1000);
    std::vector<int32_t> ids;
    std::mt19937 generator(seed);
    std::vector<int32_t> experts(kNumExperts);
    std::iota(experts.begin(), experts.end(), 0);
    std::vector<float> want;
    for (size_t t = 0; t < kTokens; ++t) {
      std::shuffle(experts.begin(), experts.end(), generator);
      float sum = 0.0F;
      for (size_t j = 0; j < kTopK; ++j) {
        const bool skip = (t + j) % 7 == 0;
        ids.push_back(skip ? -1 : experts[j]);
        if (!skip) sum += weights[t * kTopK + j];
      }
      for (size_t c = 0; c < kDModel; ++c) {
        want.push_back(sum * x[t * kDModel + c]);
      }
    }
    // 6 of the 9 compute, the last 3 are identity experts.
    for (const auto placement :
         {WeightPlacement::kOutput, WeightPlacement::kInput}) {
      EXPECT_EQ(
          CombineInputs(MatrixView<const int32_t>(ids.data(), kTokens, kTopK),
                        ConstMatrix(weights.data(), kTokens, kTopK), 6,
                        placement, ConstMatrix(x.data(), kTokens, kDModel)),
          want);
    }
  }
}

// One token, d_model 1: choices 0, 1, 2 with expert outputs in that order.
float CombineThree(const std::vector<int32_t>& ids,
                   const std::vector<float>& weights,
                   const std::vector<float>& outputs,
                   WeightPlacement placement = WeightPlacement::kOutput) {
  Dispatch dispatch;
  const ConstMatrix weight_view(weights.data(), 1, 3);
  dispatch.Build(MatrixView<const int32_t>(ids.data(), 1, 3), weight_view, 3,
                 placement);
  const float x = 100.0F;
  float out = kNaN;
  Combine(dispatch, weight_view, placement,
          ConstMatrix(outputs.data(), static_cast<int64_t>(outputs.size()), 1),
          ConstMatrix(&x, 1, 1), 0, 1, Matrix(&out, 1, 1));
  return out;
}

TEST(CombineTest, AddsInTheOrderOfTheChoice) {
  // 1e8 + 1 - 1e8 is 0 in this order in float32, and 1 in the other.
  EXPECT_EQ(CombineThree({0, 1, 2}, {1, 1, 1}, {1e8F, 1.0F, -1e8F}), 0.0F);
  EXPECT_EQ(CombineThree({0, 2, 1}, {1, 1, 1}, {1e8F, 1.0F, -1e8F}), 1.0F);
  // The order of the experts' outputs is that of their ids.
  EXPECT_EQ(CombineThree({2, 0, 1}, {1, 2, 4}, {10.0F, 20.0F, 30.0F}),
            30.0F + 20.0F + 80.0F);
}

TEST(CombineTest, SkippedPlacesContributeNothingWhateverTheirWeight) {
  EXPECT_EQ(CombineThree({-1, 1, -1}, {kNaN, 2.0F, kNaN}, {5.0F}), 10.0F);
  EXPECT_EQ(CombineThree({-1, -1, -1}, {1, 1, 1}, {}), 0.0F);
}

TEST(CombineTest, WeightsOnTheInputAreNotAppliedAgain) {
  EXPECT_EQ(CombineThree({0, 1, 2}, {5, 6, 7}, {1.0F, 2.0F, 3.0F},
                         WeightPlacement::kInput),
            6.0F);
  // Identity experts have no input of their own to scale: w * x.
  EXPECT_EQ(
      CombineThree({0, 3, 2}, {5, 6, 7}, {1.0F, 3.0F}, WeightPlacement::kInput),
      1.0F + 600.0F + 3.0F);
}

TEST(CombineTest, WritesTheRowsItIsAskedFor) {
  const std::vector<int32_t> ids = {0, 0, 0, 0};
  const std::vector<float> weights = {1, 1, 1, 1};
  const std::vector<float> x = {1, 2, 3, 4};
  Dispatch dispatch;
  const ConstMatrix weight_view(weights.data(), 4, 1);
  dispatch.Build(MatrixView<const int32_t>(ids.data(), 4, 1), weight_view, 1,
                 WeightPlacement::kOutput);
  std::vector<float> out(4, 42.0F);
  const ConstMatrix states(x.data(), 4, 1);
  Combine(dispatch, weight_view, WeightPlacement::kOutput, states, states,
          /*first=*/1, /*count=*/2, Matrix(out.data(), 4, 1));
  EXPECT_THAT(out, ElementsAre(42, 2, 3, 42));
  Combine(dispatch, weight_view, WeightPlacement::kOutput, states, states,
          /*first=*/4, /*count=*/0, Matrix(out.data(), 4, 1));
  EXPECT_THAT(out, ElementsAre(42, 2, 3, 42));
}

}  // namespace
}  // namespace moe

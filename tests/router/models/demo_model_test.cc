#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class DemoModelTest : public ::testing::Test {
 protected:
  struct Answer {
    std::vector<float> output;
    std::vector<int32_t> ids;
  };

  static constexpr int64_t kTokens = 9;

  Answer Run(const Model& model, size_t layer) {
    const int64_t d_model = model.spec().d_model;
    const auto x = RandomFloats(kTokens * d_model, 1.0F, 1);
    Answer answer;
    answer.output.resize(x.size());
    ForwardStats stats;
    MOE_EXPECT_OK(model.layers()[layer].ffn->Forward(
        ConstMatrix(x.data(), kTokens, d_model), nullptr, workspace_,
        Matrix(answer.output.data(), kTokens, d_model), stats));
    const auto& ids = workspace_.routing().ids;
    answer.ids.assign(ids.data(), ids.data() + ids.rows() * ids.cols());
    return answer;
  }

  Executor executor_{2};
  ExpertWorkspace expert_workspace_{&executor_};
  LayerWorkspace workspace_{&expert_workspace_};
  std::unique_ptr<Model> model_ = *LoadDemoModel({}, executor_);
};

TEST_F(DemoModelTest, HasTwoRoutedLayersAndADenseOne) {
  EXPECT_EQ(model_->spec().family, "demo");
  EXPECT_EQ(model_->spec().d_model, 256);
  ASSERT_THAT(model_->layers(), SizeIs(3));
  ASSERT_THAT(model_->spec().layers, SizeIs(3));
  int64_t parameters = 0;
  for (int i = 0; i < 3; ++i) {
    const ModelLayer& layer = model_->layers()[static_cast<size_t>(i)];
    const LayerSpec& spec = model_->spec().layers[static_cast<size_t>(i)];
    EXPECT_EQ(layer.index, i);
    EXPECT_EQ(spec.index, i);
    EXPECT_EQ(layer.ffn->d_model(), 256);
    EXPECT_EQ(layer.ffn->dense(), i == 2);
    EXPECT_EQ(spec.rule.has_value(), i != 2);
    EXPECT_EQ(layer.ffn->expert_spec().d_ff, spec.experts.expert.d_ff);
    parameters += spec.parameters();
  }
  EXPECT_EQ(model_->layers()[0].ffn->num_experts(), 16);
  EXPECT_EQ(model_->layers()[0].ffn->top_k(), 4);
  MOE_EXPECT_OK(model_->layers()[0].ffn->rule().Validate());
  EXPECT_EQ(model_->weights_bytes(), 4 * parameters);
}

TEST_F(DemoModelTest, IsTheSameModelEveryTime) {
  const auto again = *LoadDemoModel({}, executor_);
  for (size_t layer = 0; layer < 3; ++layer) {
    const Answer first = Run(*model_, layer);
    const Answer second = Run(*again, layer);
    EXPECT_EQ(first.output, second.output);
    EXPECT_EQ(first.ids, second.ids);
  }
}

TEST_F(DemoModelTest, LayersDifferAndExpertsShareTheWork) {
  const Answer first = Run(*model_, 0);
  const Answer second = Run(*model_, 1);
  EXPECT_NE(first.output, second.output);
  EXPECT_NE(first.ids, second.ids);
  std::vector<bool> used(16);
  for (const int32_t id : first.ids) used[static_cast<size_t>(id)] = true;
  EXPECT_GT(std::count(used.begin(), used.end(), true), 8);
}

TEST_F(DemoModelTest, OutputsAreAboutAsLargeAsInputs) {
  for (size_t layer = 0; layer < 3; ++layer) {
    double squares = 0.0;
    const Answer answer = Run(*model_, layer);
    for (const float y : answer.output) {
      ASSERT_TRUE(std::isfinite(y));
      squares += static_cast<double>(y) * y;
    }
    // Inputs: the root of a third.
    const double size =
        std::sqrt(squares / static_cast<double>(answer.output.size()));
    EXPECT_GT(size, 0.01);
    EXPECT_LT(size, 10.0);
  }
}

}  // namespace
}  // namespace moe

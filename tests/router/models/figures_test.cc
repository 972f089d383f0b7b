#include "router/models/figures.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

ExpertSpec Expert(bool gated, int64_t d_model, int64_t d_ff) {
  ExpertSpec spec;
  spec.d_model = d_model;
  spec.d_ff = d_ff;
  spec.gated = gated;
  return spec;
}

TEST(FiguresTest, GatedFfnsHaveThreeMatricesAndClassicOnesTwo) {
  EXPECT_EQ(Expert(false, 4096, 16384).parameters(), 2 * 4096 * 16384);
  EXPECT_EQ(Expert(true, 4096, 11008).parameters(), 3 * 4096 * 11008);
  // Biases: one per output of each matrix.
  ExpertSpec biased = Expert(true, 10, 6);
  biased.has_bias = true;
  EXPECT_EQ(biased.parameters(), 3 * 60 + 6 + 6 + 10);
}

TEST(FiguresTest, EightThirdsOfTheWidthMakeThemEqual) {
  // 768 is divisible by 3: no rounding.
  EXPECT_EQ(EqualGatedWidth(768, /*multiple_of=*/1), 768 * 8 / 3);
  EXPECT_EQ(Expert(true, 768, EqualGatedWidth(768, 1)).parameters(),
            Expert(false, 768, ConventionalWidth(768)).parameters());
}

TEST(FiguresTest, WidthsAreRoundedUpToAMultiple) {
  EXPECT_EQ(EqualGatedWidth(4096, 1), 10922);
  EXPECT_EQ(EqualGatedWidth(4096), 11008);  // Llama 7B
  EXPECT_EQ(EqualGatedWidth(5120), 13824);  // Llama 13B
  EXPECT_EQ(EqualGatedWidth(96), 256);      // 256 already
}

TEST(FiguresTest, ATokenCostsWhatItsExpertsCost) {
  Parts parts = GoldenParts("qwen2_moe-a");
  const TestCheckpoint checkpoint = parts.Open();
  MOE_ASSERT_OK_AND_ASSIGN(const auto models, DescribeModels(*checkpoint));
  const LayerSpec& layer = models[0].layers[0];
  MOE_ASSERT_OK_AND_ASSIGN(const TokenCost cost,
                           TokenCostOf(*checkpoint, layer, WeightFormat::kF32));
  // 4 of 10 experts of 24, a shared one of 64, its gate, and the router.
  const int64_t weights = 4 * 3 * 24 * 64 + 3 * 64 * 64 + 64 + 10 * 64;
  EXPECT_EQ(cost.parameters, weights);
  EXPECT_EQ(cost.flops, 2 * weights);
  EXPECT_GE(cost.bytes, 4 * weights);
  EXPECT_LT(cost.bytes, 5 * weights);  // panels are padded
}

TEST(FiguresTest, IdentityExpertsCostNothing) {
  Parts parts = GoldenParts("longcat_flash-a");
  const TestCheckpoint checkpoint = parts.Open();
  MOE_ASSERT_OK_AND_ASSIGN(auto models, DescribeModels(*checkpoint));
  LayerSpec layer = models[0].layers[0];
  layer.rule->top_k = 12;  // all, of which 8 have weights
  MOE_ASSERT_OK_AND_ASSIGN(const TokenCost cost,
                           TokenCostOf(*checkpoint, layer, WeightFormat::kF32));
  EXPECT_EQ(cost.parameters, 8 * 3 * 24 * 64 + 12 * 64 + 12);
}

// The figures are those of a model that is loaded.
class MemoryTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryTest, IsWhatALoadedModelTakes) {
  Parts parts = GoldenParts(GetParam());
  const TestCheckpoint checkpoint = parts.Open();
  MOE_ASSERT_OK_AND_ASSIGN(const auto models, DescribeModels(*checkpoint));
  Executor executor(1);
  for (const WeightFormat format :
       {WeightFormat::kAuto, WeightFormat::kF32, WeightFormat::kBF16,
        WeightFormat::kInt8, WeightFormat::kInt4}) {
    SCOPED_TRACE(std::string(WeightFormatName(format)));
    MOE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Model> model,
                             LoadModel(*checkpoint, models[0],
                                       {.weight_format = format, .layers = {}},
                                       executor, [](const LoadProgress&) {}));
    int64_t bytes = 0;
    for (const LayerSpec& layer : models[0].layers) {
      MOE_ASSERT_OK_AND_ASSIGN(const int64_t more,
                               LayerBytes(*checkpoint, layer, format));
      bytes += more;
    }
    // Padding of biases, and whole buffers, are left out of the figures.
    EXPECT_NEAR(static_cast<double>(model->weights_bytes()),
                static_cast<double>(bytes), 0.02 * static_cast<double>(bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryTest,
                         ::testing::Values("mixtral-a", "deepseek_v3_fp8-a",
                                           "gpt_oss_mxfp4-a", "gpt2-a",
                                           "qwen2_moe-a"),
                         [](const auto& test) {
                           std::string name = test.param;
                           name.erase(name.find('-'));
                           return name;
                         });

}  // namespace
}  // namespace moe

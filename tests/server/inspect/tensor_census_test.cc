#include "server/inspect/tensor_census.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TensorCensus CensusOf(const Parts& parts) {
  const TestCheckpoint checkpoint = parts.Open();
  const auto models = DescribeModels(*checkpoint);
  MOE_EXPECT_OK(models);
  return TakeCensus(*checkpoint, *models);
}

SkippedTensors Skipped(const TensorCensus& census, const std::string& reason) {
  const auto found = std::find_if(
      census.skipped.begin(), census.skipped.end(),
      [&](const SkippedTensors& group) { return group.reason == reason; });
  MOE_CHECK(found != census.skipped.end());
  return *found;
}

TEST(TensorCensusTest, CountsWhatTheLayersAreMadeOf) {
  // Router, and 16 experts of three matrices; F16.
  const TensorCensus census = CensusOf(GoldenParts("olmoe-a"));
  EXPECT_EQ(census.recognised, 1 + 16 * 3);
  EXPECT_EQ(census.recognised_bytes, 2 * (16 * 64 + 16 * 3 * 24 * 64));
}

TEST(TensorCensusTest, ScalesBelongToTheirMatrices) {
  // Dense: 3 matrices; routed: gate, bias, 6 x 3 and a shared expert; each
  // matrix of an expert with its scales.
  EXPECT_EQ(CensusOf(GoldenParts("deepseek_v3_fp8-a")).recognised,
            2 * (3 + 6 * 3 + 3) + 2);
  // Blocks, scales and bias twice, and a router with a bias, in two layers.
  EXPECT_EQ(CensusOf(GoldenParts("gpt_oss_mxfp4-a")).recognised, 2 * 8);
}

TEST(TensorCensusTest, PartsOfFourBitMatricesBelongToThem) {
  Parts parts = GoldenParts("olmoe-a");
  const TensorCensus before = CensusOf(parts);
  // A name is all that there is to go by; no file has all of these.
  MOE_ASSERT_OK_AND_ASSIGN(const auto models, DescribeModels(*parts.Open()));
  const std::vector<std::string> suffixes = {
      "qweight",       "scales",       "qzeros",
      "g_idx",         "weight_scale", "weight_zero_point",
      "weight_packed", "weight_shape"};
  for (const std::string& suffix : suffixes) {
    parts.tensors.push_back(
        RawTensor<int32_t>("model.layers.0.mlp.experts.3.up_proj." + suffix,
                           DType::kI32, {1}, {0}));
  }
  const TensorCensus after = TakeCensus(*parts.Open(), models);
  EXPECT_EQ(after.recognised,
            before.recognised + static_cast<int64_t>(suffixes.size()));
  EXPECT_EQ(after.skipped_parameters, before.skipped_parameters);
}

TEST(TensorCensusTest, PredictionLayersAreLeftAlone) {
  for (const char* name : {"deepseek_v3-a", "qwen3_next-a"}) {
    const SkippedTensors group = Skipped(CensusOf(GoldenParts(name)),
                                         "layers that predict further tokens");
    EXPECT_GT(group.count, 30);
    EXPECT_THAT(group.patterns, Contains(HasSubstr("experts.#.up_proj")));
  }
}

TEST(TensorCensusTest, EncodersOfImagesAreLeftAlone) {
  const SkippedTensors group =
      Skipped(CensusOf(GoldenParts("llama4-a")), "encoders of images or sound");
  EXPECT_THAT(group.patterns, Contains("vision_model.model.layers.#.mlp.fc1."
                                       "weight"));
}

TEST(TensorCensusTest, EachReasonHasEachPatternOnce) {
  const SkippedTensors group =
      Skipped(CensusOf(GoldenParts("llama-a")), "attention");
  std::vector<std::string> patterns = group.patterns;
  std::sort(patterns.begin(), patterns.end());
  EXPECT_EQ(std::adjacent_find(patterns.begin(), patterns.end()),
            patterns.end());
  EXPECT_THAT(patterns, Contains("model.layers.#.self_attn.q_proj.weight"));
}

TEST(TensorCensusTest, SkippedParametersLeaveBuffersOut) {
  Parts parts = GoldenParts("gpt2-a");
  const int64_t before = CensusOf(parts).skipped_parameters;
  parts.tensors.push_back(FloatTensor("h.1.attn.mask.bias", DType::kF32,
                                      {1, 1, 2, 2}, {1, 0, 1, 1}));
  parts.tensors.push_back(RawTensor("some.position_ids", DType::kI64, {2},
                                    std::vector<int64_t>{0, 1}));
  EXPECT_EQ(CensusOf(parts).skipped_parameters, before);
  parts.tensors.push_back(
      FloatTensor("score.weight", DType::kF32, {2}, {1, 0}));
  EXPECT_EQ(CensusOf(parts).skipped_parameters, before + 2);
}

}  // namespace
}  // namespace moe

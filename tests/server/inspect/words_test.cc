#include "server/inspect/words.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

// The last layer of a conformance case.
LayerSpec LastLayer(const char* name) {
  const auto models = DescribeModels(*GoldenParts(name).Open());
  MOE_EXPECT_OK(models);
  return (*models)[0].layers.back();
}

struct RuleCase {
  const char* name;
  const char* words;
};

class RoutingInWordsTest : public ::testing::TestWithParam<RuleCase> {};

TEST_P(RoutingInWordsTest, SaysTheWholeRule) {
  EXPECT_EQ(RoutingInWords(LastLayer(GetParam().name)), GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    All, RoutingInWordsTest,
    ::testing::Values(
        RuleCase{"olmoe-a", "the 4 largest of softmax(z); weight softmax(z)"},
        RuleCase{"mixtral-a",
                 "the 2 largest of softmax(z); weight softmax(z), divided by "
                 "the sum of the chosen"},
        RuleCase{"deepseek_v3-a",
                 "the 4 largest of sigmoid(z) + bias in the 2 best of 4 groups "
                 "(by their two best, summed); weight sigmoid(z), divided by "
                 "the sum of the chosen, times 2.5"},
        RuleCase{"gpt_oss-a",
                 "the 4 largest of z; weight softmax over the chosen z"},
        RuleCase{"llama4-a",
                 "the largest of z; weight sigmoid(z), applied to the expert's "
                 "input"},
        RuleCase{"dbrx-a",
                 "the 4 largest of softmax(z); weight softmax(z), divided by "
                 "the 1-norm of the chosen"},
        RuleCase{"phimoe-a",
                 "the 2 largest of z; weight a softmax over the z within 0.02 "
                 "of each choice, relatively"},
        RuleCase{"longcat_flash-a",
                 "the 4 largest of softmax(z) + bias; weight softmax(z), times "
                 "6; the last 4 of 12 experts return their input"},
        RuleCase{"ernie4_5_moe-a",
                 "the 3 largest of softmax(z) + bias; weight softmax(z), "
                 "divided by the sum of the chosen (at least 1e-12)"}),
    [](const auto& test) {
      std::string name = test.param.name;
      name.erase(name.find('-'));
      return name;
    });

TEST(WordsTest, ExpertsAreDescribedByTheirMatricesAndActivation) {
  EXPECT_EQ(ExpertInWords(LastLayer("gpt2-a").experts.expert),
            "classic, 2 matrices: down_proj(act(up_proj x)) with gelu_tanh, "
            "biases");
  EXPECT_EQ(ExpertInWords(LastLayer("gpt_oss-a").experts.expert),
            "gated, 3 matrices: down_proj(act(gate_proj x) * up_proj x) with "
            "silu, beta 1.702, clamped to 7, up_proj x + 1, biases");
}

TEST(WordsTest, NeighboursMakeARange) {
  EXPECT_EQ(RangesText({}), "");
  EXPECT_EQ(RangesText({3}), "3");
  EXPECT_EQ(RangesText({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(WordsTest, NumbersHaveCommasAndUnits) {
  EXPECT_EQ(ThousandsText(0), "0");
  EXPECT_EQ(ThousandsText(999), "999");
  EXPECT_EQ(ThousandsText(1000), "1,000");
  EXPECT_EQ(ThousandsText(1234567890), "1,234,567,890");
  EXPECT_EQ(BytesText(1023), "1023 bytes");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(int64_t{3} << 40), "3.0 TiB");
}

}  // namespace
}  // namespace moe

#include "experts/base/expert_spec.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ParseActivationTest, KnowsTheNamesOfCheckpoints) {
  struct Row {
    const char* name;
    Activation want;
  };
  for (const Row& row : {Row{"silu", Activation::kSilu},
                         {"swish", Activation::kSilu},
                         {"gelu", Activation::kGelu},
                         {"gelu_new", Activation::kGeluTanh},
                         {"gelu_pytorch_tanh", Activation::kGeluTanh},
                         {"gelu_fast", Activation::kGeluTanh},
                         {"relu", Activation::kRelu},
                         {"relu2", Activation::kRelu2},
                         {"sigmoid", Activation::kSigmoid},
                         {"linear", Activation::kIdentity}}) {
    SCOPED_TRACE(row.name);
    MOE_ASSERT_OK_AND_ASSIGN(const Activation got, ParseActivation(row.name));
    EXPECT_EQ(got, row.want);
  }
}

TEST(ParseActivationTest, RefusesOtherNamesSayingWhatCame) {
  for (const char* name : {"", "SiLU", "quick_gelu", "silu "}) {
    EXPECT_THAT(ParseActivation(name),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("activation: want one of silu"),
                               HasSubstr(absl::StrCat("\"", name, "\"")))));
  }
}

TEST(ActivationNameTest, IsTheNameOfTheFunction) {
  EXPECT_EQ(ActivationName(Activation::kIdentity), "identity");
  EXPECT_EQ(ActivationName(Activation::kRelu), "relu");
  EXPECT_EQ(ActivationName(Activation::kRelu2), "relu2");
  EXPECT_EQ(ActivationName(Activation::kGelu), "gelu");
  EXPECT_EQ(ActivationName(Activation::kGeluTanh), "gelu_tanh");
  EXPECT_EQ(ActivationName(Activation::kSilu), "silu");
  EXPECT_EQ(ActivationName(Activation::kSigmoid), "sigmoid");
}

TEST(ExpertSpecTest, CountsParametersOfMatricesAndBiases) {
  ExpertSpec spec{.d_model = 5, .d_ff = 3, .activation = {}};
  EXPECT_EQ(spec.parameters(), 3 * 15);
  spec.has_bias = true;
  EXPECT_EQ(spec.parameters(), 3 * 15 + 3 + 3 + 5);
  spec.gated = false;
  EXPECT_EQ(spec.parameters(), 2 * 15 + 3 + 5);
  spec.has_bias = false;
  EXPECT_EQ(spec.parameters(), 2 * 15);
}

TEST(ExpertSpecTest, CountsTwoOperationsPerWeightOfTheProjections) {
  ExpertSpec spec{.d_model = 5, .d_ff = 3, .has_bias = true, .activation = {}};
  EXPECT_EQ(spec.flops_per_row(), 2 * 3 * 15);
  spec.gated = false;
  EXPECT_EQ(spec.flops_per_row(), 2 * 2 * 15);
}

TEST(ExpertSpecTest, CountsPastFourBillion) {
  // One expert of the largest models has less; a wide dense layer has more.
  const ExpertSpec spec{.d_model = 40000, .d_ff = 160000, .activation = {}};
  EXPECT_EQ(spec.parameters(), int64_t{19'200'000'000});
  EXPECT_EQ(spec.flops_per_row(), int64_t{38'400'000'000});
}

}  // namespace
}  // namespace moe

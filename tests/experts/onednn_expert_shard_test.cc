#include "experts/onednn_expert_shard.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "experts/base/dtype.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "experts/matmul_onednn.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

// The parameter is the format of the shards' elements: kF32 or kBF16.
class OneDnnExpertShardTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    if (rounds() && !OneDnnMultipliesBF16()) {
      GTEST_SKIP() << "oneDNN " << OneDnnVersion()
                   << " does not multiply bf16 on this CPU";
    }
  }

  static bool rounds() { return GetParam() == WeightFormat::kBF16; }
  static std::unique_ptr<ExpertShard> Load(
      const ExpertSpec& spec, const std::vector<ReferenceExpert>& experts,
      Executor& executor) {
    const std::vector<StoredExpert> stored = StoreExperts(spec, experts);
    if (rounds()) return OneDnnBF16ExpertShard::Load(spec, stored, executor);
    return OneDnnExpertShard::Load(spec, stored, executor);
  }
  // As the shard rounds weights and inputs.
  static float Rounded(float value) {
    return rounds() ? BF16ToFloat(FloatToBF16(value)) : value;
  }

  static void ExpectAgreesWithReference(const ExpertSpec& spec,
                                        const std::vector<int>& counts,
                                        const std::vector<float>& input_scales,
                                        int num_threads);
};

// Rows 0, 1, 2, ... to the experts in turn, `counts[e]` of them each.
void OneDnnExpertShardTest::ExpectAgreesWithReference(
    const ExpertSpec& spec, const std::vector<int>& counts,
    const std::vector<float>& input_scales, int num_threads) {
  std::vector<ReferenceExpert> experts;
  std::vector<int32_t> offsets = {0};
  for (size_t e = 0; e < counts.size(); ++e) {
    experts.push_back(RandomExpert(spec, static_cast<uint32_t>(e)));
    offsets.push_back(offsets.back() + counts[e]);
  }
  const int64_t rows = offsets.back();
  std::vector<int32_t> row_ids(static_cast<size_t>(rows));
  std::iota(row_ids.begin(), row_ids.end(), 0);
  const auto x = RandomFloats(rows * spec.d_model, 1.0F, 5);

  Executor executor(num_threads);
  const auto shard = Load(spec, experts, executor);
  EXPECT_EQ(shard->num_experts(), static_cast<int64_t>(counts.size()));
  std::vector<float> out(x.size(), -1.0F);
  ExpertWorkspace workspace(&executor);
  ExpertFailures failures;
  MOE_ASSERT_OK(shard->Forward(
      {.hidden_states = ConstMatrix(x.data(), rows, spec.d_model),
       .offsets = offsets,
       .rows = row_ids,
       .input_scales = input_scales},
      workspace, Matrix(out.data(), rows, spec.d_model), failures));

  for (ReferenceExpert& expert : experts) {
    for (auto& weights : expert.weights) {
      for (float& weight : weights) weight = Rounded(weight);
    }
  }
  // What goes to down_proj is rounded, too, but only known to within float32's
  // errors. A float has 16 bits of mantissa more than a bfloat16.
  const double inner_epsilon =
      rounds() ? std::numeric_limits<float>::epsilon() * 65536.0 : 0.0;
  std::vector<Bounded> want;
  for (size_t e = 0; e < counts.size(); ++e) {
    for (int32_t row = offsets[e]; row < offsets[e + 1]; ++row) {
      std::vector<Bounded> input;
      for (int64_t c = 0; c < spec.d_model; ++c) {
        const float scale = input_scales.empty()
                                ? 1.0F
                                : input_scales[static_cast<size_t>(row)];
        const float scaled =
            x[static_cast<size_t>(row * spec.d_model + c)] * scale;
        input.push_back({Rounded(scaled), 0.0});
      }
      const auto y = RunReferenceExpert(spec, experts[e], input, inner_epsilon);
      want.insert(want.end(), y.begin(), y.end());
    }
  }
  EXPECT_TRUE(IsWithin(ConstMatrix(out.data(), rows, spec.d_model), want));
}

TEST_P(OneDnnExpertShardTest, AgreesWithTheReference) {
  for (const int num_threads : {1, 2}) {
    for (const bool gated : {true, false}) {
      for (const bool has_bias : {true, false}) {
        const ExpertSpec spec = {.d_model = 96,
                                 .d_ff = 40,
                                 .gated = gated,
                                 .has_bias = has_bias,
                                 .activation = {}};
        ExpectAgreesWithReference(spec, {3, 0, 17, 1}, {}, num_threads);
      }
    }
  }
}

TEST_P(OneDnnExpertShardTest, CutsLargeMatricesIntoBlocks) {
  ExpectAgreesWithReference({.d_model = 300, .d_ff = 520, .activation = {}},
                            {270}, {}, 2);
}

TEST_P(OneDnnExpertShardTest, ScalesTheInputs) {
  ExpectAgreesWithReference({.d_model = 8, .d_ff = 5, .activation = {}}, {2, 1},
                            {0.5F, -2.0F, 0.3F}, 1);
}

TEST_P(OneDnnExpertShardTest, NoRowsAreNoWork) {
  ExpectAgreesWithReference({.d_model = 8, .d_ff = 5, .activation = {}}, {0, 0},
                            {}, 1);
}

TEST_P(OneDnnExpertShardTest, CountsTheMemoryOfItsWeights) {
  const ExpertSpec spec = {.d_model = 8, .d_ff = 5, .activation = {}};
  const std::vector<ReferenceExpert> experts = {RandomExpert(spec, 1),
                                                RandomExpert(spec, 2)};
  Executor executor(1);
  const WeightsBytes bytes = Load(spec, experts, executor)->weights();
  const int64_t want = 2 * spec.parameters() * (rounds() ? 2 : 4);
  EXPECT_EQ(bytes[GetParam()], want);
  EXPECT_EQ(bytes.total(), want);
}

INSTANTIATE_TEST_SUITE_P(All, OneDnnExpertShardTest,
                         ::testing::Values(WeightFormat::kF32,
                                           WeightFormat::kBF16),
                         [](const auto& test) {
                           return std::string(WeightFormatName(test.param));
                         });

}  // namespace
}  // namespace moe

#include "experts/expert_fingerprint.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"

namespace moe {
namespace {

class ExpertFingerprintTest : public ::testing::Test {
 protected:
  static uint64_t Of(const ExpertSpec& spec, const ReferenceExpert& expert,
                     WeightFormat format = WeightFormat::kAuto,
                     ExpertEngine engine = ExpertEngine::kSimd) {
    return ExpertFingerprint(
        spec, StoreExperts(spec, absl::MakeConstSpan(&expert, 1)).front(),
        engine, format);
  }

  const ExpertSpec spec_{
      .d_model = 96, .d_ff = 40, .has_bias = true, .activation = {}};
  const ReferenceExpert expert_ = RandomExpert(spec_, 1);
};

TEST_F(ExpertFingerprintTest, IsTheSameForTheSameExpert) {
  EXPECT_EQ(Of(spec_, expert_), Of(spec_, RandomExpert(spec_, 1)));
  // What auto means for stored float32.
  EXPECT_EQ(Of(spec_, expert_), Of(spec_, expert_, WeightFormat::kF32));
}

TEST_F(ExpertFingerprintTest, IsAnotherForWhateverChangesTheResult) {
  const uint64_t print = Of(spec_, expert_);
  EXPECT_NE(Of(spec_, RandomExpert(spec_, 2)), print);
  EXPECT_NE(Of(spec_, expert_, WeightFormat::kBF16), print);
  EXPECT_NE(Of(spec_, expert_, WeightFormat::kInt8), print);
  EXPECT_NE(Of(spec_, expert_, WeightFormat::kAuto, ExpertEngine::kOneDnn),
            print);
  const std::vector<std::function<void(ExpertSpec&)>> changes = {
      [](ExpertSpec& s) { s.activation.activation = Activation::kGelu; },
      [](ExpertSpec& s) { s.activation.beta = 2; },
      [](ExpertSpec& s) { s.activation.limit = 7; },
      [](ExpertSpec& s) { s.activation.up_offset = 1; }};
  for (const auto& change : changes) {
    ExpertSpec spec = spec_;
    change(spec);
    EXPECT_NE(Of(spec, expert_), print);
  }
}

TEST_F(ExpertFingerprintTest, SeesTrainingInEveryProjectionAndBias) {
  const uint64_t print = Of(spec_, expert_);
  for (int p = 0; p < kNumProjections; ++p) {
    ReferenceExpert trained = expert_;
    for (float& weight : trained.weights[p]) weight *= 1.001F;
    EXPECT_NE(Of(spec_, trained), print) << p;
    trained = expert_;
    trained.biases[p].front() += 0.5F;
    EXPECT_NE(Of(spec_, trained), print) << p;
  }
}

TEST_F(ExpertFingerprintTest, ClassicExpertsHaveOne) {
  ExpertSpec classic = spec_;
  classic.gated = false;
  const ReferenceExpert expert = RandomExpert(classic, 1);
  EXPECT_EQ(Of(classic, expert), Of(classic, expert));
  EXPECT_NE(Of(classic, expert), Of(spec_, expert_));
}

}  // namespace
}  // namespace moe

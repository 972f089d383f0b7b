#include "experts/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double Reference(Activation activation, double beta, double z) {
  switch (activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return std::max(z, 0.0);
    case Activation::kRelu2:
      return std::max(z, 0.0) * std::max(z, 0.0);
    case Activation::kGelu:
      return z / 2 * (1 + std::erf(z / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return z / 2 *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) *
                            (z + 0.044715 * z * z * z)));
    case Activation::kSilu:
      return z / (1 + std::exp(-beta * z));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-z));
  }
  return 0;
}

class ActivateTest : public ::testing::TestWithParam<Activation> {};

TEST_P(ActivateTest, AgreesWithDoublePrecision) {
  for (const float beta : {1.0F, 1.702F}) {
    const ActivationSpec spec{.activation = GetParam(), .beta = beta};
    double worst = 0.0;
    std::string worst_text;
    for (int i = -3000; i <= 3000; ++i) {
      const float z = static_cast<float>(i) / 100.0F;
      const double want = Reference(GetParam(), beta, z);
      const double got = Activate(spec, z);
      // 1 + erf and 1 + tanh cancel for negative z, hence an error relative to
      // z; the exponent's rounding makes one relative to z times the result.
      const double tolerance =
          std::numeric_limits<float>::epsilon() *
          (2 * std::fabs(z) + (4 + std::fabs(beta * z)) * std::fabs(want));
      const double error = std::fabs(got - want);
      if (!(error <= tolerance) && !(error <= worst)) {
        worst = error;
        worst_text = absl::StrCat("worst at z = ", z, ": got ", got, ", want ",
                                  want, " +- ", tolerance);
      }
    }
    EXPECT_EQ(worst_text, "");
  }
}

TEST_P(ActivateTest, LargeInputsStayFiniteOrBecomeTheLimit) {
  const ActivationSpec spec{.activation = GetParam()};
  for (const float z : {1e4F, 1e10F, 1e19F}) {
    const double want = Reference(GetParam(), 1, z);
    EXPECT_FLOAT_EQ(Activate(spec, z), static_cast<float>(want)) << z;
    EXPECT_FLOAT_EQ(Activate(spec, -z),
                    static_cast<float>(Reference(GetParam(), 1, -z)))
        << z;
  }
}

TEST_P(ActivateTest, KeepsNaN) {
  EXPECT_TRUE(std::isnan(Activate({.activation = GetParam()}, kNaN)));
}

TEST_P(ActivateTest, ActsOnEachElement) {
  const ActivationSpec spec{.activation = GetParam()};
  std::vector<float> z;
  for (int i = 0; i < 17; ++i) z.push_back(static_cast<float>(i - 8) / 2.0F);
  std::vector<float> h(z.size() + 1, 42.0F);
  ActivateClassic(spec, z.data(), static_cast<int64_t>(z.size()), h.data());
  for (size_t i = 0; i < z.size(); ++i) {
    EXPECT_EQ(h[i], Activate(spec, z[i])) << i;
  }
  EXPECT_EQ(h.back(), 42.0F);
  ActivateClassic(spec, z.data(), static_cast<int64_t>(z.size()), z.data());
  h.pop_back();
  EXPECT_EQ(z, h);
}

INSTANTIATE_TEST_SUITE_P(
    All, ActivateTest,
    ::testing::Values(Activation::kIdentity, Activation::kRelu,
                      Activation::kRelu2, Activation::kGelu,
                      Activation::kGeluTanh, Activation::kSilu,
                      Activation::kSigmoid),
    [](const auto& test) {
      std::string name(ActivationName(test.param));
      std::erase(name, '_');
      return name;
    });

TEST(ActivateGatedTest, MultipliesTheActivatedGateByUp) {
  const ActivationSpec spec{.activation = Activation::kSilu};
  const std::vector<float> gate = {-2.0F, 0.0F, 0.5F, 3.0F};
  const std::vector<float> up = {1.5F, 7.0F, -4.0F, 0.0F};
  std::vector<float> h(5, 42.0F);
  ActivateGated(spec, gate.data(), up.data(), 4, h.data());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(h[i], Activate(spec, gate[i]) * up[i]) << i;
  }
  EXPECT_EQ(h[4], 42.0F);
}

TEST(ActivateGatedTest, WritesOverEitherInput) {
  const ActivationSpec spec{.activation = Activation::kGelu, .up_offset = 1.0F};
  const std::vector<float> gate = {-2.0F, 0.25F, 3.0F};
  const std::vector<float> up = {1.5F, -4.0F, 2.0F};
  std::vector<float> want(3);
  ActivateGated(spec, gate.data(), up.data(), 3, want.data());
  std::vector<float> over_gate = gate;
  ActivateGated(spec, over_gate.data(), up.data(), 3, over_gate.data());
  EXPECT_EQ(over_gate, want);
  std::vector<float> over_up = up;
  ActivateGated(spec, gate.data(), over_up.data(), 3, over_up.data());
  EXPECT_EQ(over_up, want);
}

TEST(ActivateGatedTest, ClampsGateAboveAndUpOnBothSidesThenAddsTheOffset) {
  const ActivationSpec spec{
      .activation = Activation::kIdentity, .limit = 7.0F, .up_offset = 1.0F};
  const std::vector<float> gate = {9.0F, -9.0F, kInfinity, 2.0F, 2.0F, 7.0F};
  const std::vector<float> up = {1.0F, 1.0F, 1.0F, 9.0F, -9.0F, -7.0F};
  const std::vector<float> want = {14.0F, -18.0F, 14.0F, 16.0F, -12.0F, -42.0F};
  std::vector<float> h(6);
  ActivateGated(spec, gate.data(), up.data(), 6, h.data());
  EXPECT_EQ(h, want);
}

TEST(ActivateGatedTest, ClampsKeepNaN) {
  const ActivationSpec spec{.activation = Activation::kIdentity, .limit = 1.0F};
  const std::vector<float> gate = {kNaN, 1.0F};
  const std::vector<float> up = {1.0F, kNaN};
  std::vector<float> h(2);
  ActivateGated(spec, gate.data(), up.data(), 2, h.data());
  EXPECT_TRUE(std::isnan(h[0]));
  EXPECT_TRUE(std::isnan(h[1]));
}

}  // namespace
}  // namespace moe

#include "experts/kernels/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "experts/kernels/x86.h"
#include "gtest/gtest.h"
#include "tests/experts/kernels/packed_experts.h"

namespace moe {
namespace {

TEST(KernelsTest, TheLastOneIsPortableAndTheFirstOneIsTheBest) {
  const auto& all = AllKernels();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front()->isa, BestKernels().isa);
  EXPECT_TRUE(all.back()->isa == "SCALAR" || all.back()->isa == "EMU128");
}

TEST(KernelsTest, EachHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const Kernels* kernels : AllKernels()) {
    EXPECT_TRUE(names.emplace(kernels->isa).second) << kernels->isa;
  }
}

#if HWY_ARCH_X86_64
// On any CPU: the tables are made here, not run.
TEST(KernelsTest, TablesBeyondHighwaysAreNamedForWhatTheyUse) {
  Kernels avx_vnni = *AllKernels().back();
  UseAvxVnni(avx_vnni);
  EXPECT_EQ(avx_vnni.isa, "AVX_VNNI");
  EXPECT_FALSE(avx_vnni.same_bytes_everywhere);
  Kernels vnni = *AllKernels().back();
  UseVnni(vnni);
  EXPECT_EQ(vnni.isa, "VNNI");
  EXPECT_FALSE(vnni.same_bytes_everywhere);
  Kernels amx = *AllKernels().back();
  UseAmx(amx);
  EXPECT_EQ(amx.isa, "AMX");
  EXPECT_FALSE(amx.same_bytes_everywhere);
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kInt4,
        WeightFormat::kMxfp4}) {
    EXPECT_EQ(amx[format].max_rows, 16);
    for (int rows = 1; rows <= 16; ++rows) {
      EXPECT_NE(amx[format].mul[rows][0], nullptr) << rows;
    }
  }
}
#endif

TEST(KernelsTest, DeterministicOnesAreTheBestWithTheSameBytesEverywhere) {
  const Kernels& chosen = DeterministicKernels();
  EXPECT_TRUE(chosen.same_bytes_everywhere || &chosen == AllKernels().back());
  for (const Kernels* kernels : AllKernels()) {
    if (kernels == &chosen) break;
    EXPECT_FALSE(kernels->same_bytes_everywhere);
  }
}

class ActivateTest : public ::testing::TestWithParam<Activation> {};

TEST_P(ActivateTest, IsAccurateToAFewUnitsInTheLastPlace) {
  ActivationSpec spec;
  spec.activation = GetParam();
  // One panel of 16 columns per step, from the far negative to the far
  // positive.
  constexpr int64_t kRows = 4096;
  std::vector<float> z(kRows * kPanelWidth);
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] =
        -40.0F + 80.0F * static_cast<float>(i) / static_cast<float>(z.size());
  }
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    auto out = z;
    kernels->activate(spec, /*gated=*/false, /*outputs=*/1, kRows, out.data());
    for (size_t i = 0; i < z.size(); ++i) {
      const double want = ReferenceActivation(spec, z[i]);
      // The tail of tanh's argument costs what its size does to the exponent.
      const double ulps = GetParam() == Activation::kGeluTanh
                              ? 4 + std::fabs(std::pow(z[i], 3)) * 0.15
                          : kernels == AllKernels().back() ? 6 + z[i] * z[i]
                                                           : 6;
      ASSERT_NEAR(out[i], want, std::fabs(want) * ulps * 0x1p-23 + 0x1p-120)
          << z[i];
    }
  }
}

TEST_P(ActivateTest, AValueIsTheSameInEveryLane) {
  ActivationSpec spec;
  spec.activation = GetParam();
  const auto values = RandomFloats(64, 3.0F, 7);
  for (const Kernels* kernels : AllKernels()) {
    for (const float value : values) {
      std::vector<float> z(3 * kPanelWidth, value);
      kernels->activate(spec, /*gated=*/false, /*outputs=*/1, 3, z.data());
      for (const float got : z) {
        ASSERT_EQ(std::memcmp(&got, &z[0], sizeof(float)), 0);
      }
    }
  }
}

TEST_P(ActivateTest, NotANumberStaysNotANumber) {
  ActivationSpec spec;
  spec.activation = GetParam();
  spec.limit = 7.0F;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    std::vector<float> z(2 * kPanelWidth, 1.0F);
    z[3] = nan;                // a gate
    z[kPanelWidth + 5] = nan;  // an up
    kernels->activate(spec, /*gated=*/true, /*outputs=*/1, 1, z.data());
    for (int64_t i = 0; i < kPanelWidth; ++i) {
      EXPECT_EQ(std::isnan(z[i]), i == 3 || i == 5) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ActivateTest,
    ::testing::Values(Activation::kIdentity, Activation::kRelu,
                      Activation::kRelu2, Activation::kGelu,
                      Activation::kGeluTanh, Activation::kSilu,
                      Activation::kSigmoid));

TEST(ActivateTest, SiluOfTheInfinitiesIsItsLimit) {
  const ActivationSpec spec;
  const float inf = std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : AllKernels()) {
    std::vector<float> z(kPanelWidth, inf);
    z[1] = -1000.0F;
    kernels->activate(spec, /*gated=*/false, /*outputs=*/1, 1, z.data());
    EXPECT_EQ(z[0], inf);
    EXPECT_EQ(z[1], 0.0F);
  }
}

}  // namespace
}  // namespace moe

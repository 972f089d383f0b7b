#include "experts/kernels/packed_matrix.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "experts/kernels/kernels.h"
#include "gtest/gtest.h"
#include "tests/experts/kernels/packed_experts.h"
#include "tests/experts/kernels/reference_packing.h"

namespace moe {
namespace {

std::vector<uint8_t> PackAll(const PackedLayout& layout,
                             const std::vector<float>& weights) {
  std::vector<uint8_t> data(layout.bytes());
  for (int64_t p = 0; p < layout.panels(); ++p) {
    PackPanel(layout, ReaderOf(weights, layout.k), p,
              &data[p * layout.panel_bytes()]);
  }
  return data;
}

float Element(const PackedLayout& layout, const std::vector<uint8_t>& data,
              int64_t row, int64_t k) {
  return UnpackedElement(layout,
                         &data[row / kPanelWidth * layout.panel_bytes()],
                         row % kPanelWidth, k);
}

class PackedMatrixTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(PackedMatrixTest, KeepsWhatTheFormatCanHold) {
  // Values that every format holds exactly: a scale of a power of two, codes
  // that are small integers with one of the largest magnitude in each group.
  for (const int64_t k : {1, 31, 32, 96, 160, 300}) {
    for (const int64_t n : {1, 16, 40}) {
      const auto layout = PackedLayout::For(GetParam(), n, k);
      std::vector<float> weights(n * k);
      for (int64_t i = 0; i < n * k; ++i) {
        const int64_t step = i % k;
        const float values[] = {0, 1, -1, 2, -2, 4, -4, 3};
        weights[i] = values[(i * 7 + i / k) % 8] * 0.25F;
        if (step % 32 == 0) weights[i] = -1.0F;
        if (GetParam() == WeightFormat::kInt4) {
          weights[i] = step % 32 == 0 ? -2.0F : weights[i];
        }
        if (GetParam() == WeightFormat::kInt8) {
          weights[i] = step % 32 == 0 ? -127 * 0.25F : weights[i];
        }
        if (GetParam() == WeightFormat::kFp8) {
          weights[i] = step % 32 == 0 ? -448 * 0.25F : weights[i];
        }
      }
      const auto data = PackAll(layout, weights);
      for (int64_t i = 0; i < n * k; ++i) {
        ASSERT_EQ(Element(layout, data, i / k, i % k), weights[i])
            << n << "x" << k << " at " << i;
      }
    }
  }
}

// What symmetric quantisers left, in floats: groups whose largest magnitude is
// 8 or 7 steps, of either sign.
TEST(PackedInt4Test, FindsSymmetricCodesAgain) {
  constexpr int64_t kK = 96;
  const auto layout = PackedLayout::For(WeightFormat::kInt4, 32, kK);
  std::vector<float> weights(32 * kK);
  std::mt19937 engine(3);
  for (int64_t i = 0; i < 32 * kK; ++i) {
    weights[i] = static_cast<float>(static_cast<int>(engine() % 13) - 6);
    const int64_t row = i / kK;
    const float extremes[] = {-8, 8, 7, -7};
    if (i % 32 == 5) weights[i] = extremes[row % 4];
    weights[i] *= std::ldexp(1.25F, static_cast<int>(row % 7) - 9);
  }
  const auto data = PackAll(layout, weights);
  for (int64_t i = 0; i < 32 * kK; ++i) {
    ASSERT_EQ(Element(layout, data, i / kK, i % kK), weights[i]) << i;
  }
}

TEST_P(PackedMatrixTest, IsNoFurtherOffThanHalfAStep) {
  const int64_t n = 33;
  const int64_t k = 517;
  const auto layout = PackedLayout::For(GetParam(), n, k);
  const auto weights = RandomFloats(n * k, 0.02F, 5);
  const auto data = PackAll(layout, weights);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const float w = weights[row * k + i];
      const int64_t group = layout.has_scales() ? layout.group : 1;
      float max = 0;
      for (int64_t j = i / group * group;
           j < std::min(k, (i / group + 1) * group); ++j) {
        max = std::max(max, std::fabs(weights[row * k + j]));
      }
      float step = 0;
      switch (GetParam()) {
        case WeightFormat::kBF16:
          step = std::fabs(w) * 0x1p-8F;
          break;
        case WeightFormat::kF16:
          step = std::max(std::fabs(w) * 0x1p-11F, 0x1p-25F);
          break;
        case WeightFormat::kFp8:
          step = std::max(std::fabs(w) * 0x1.01p-4F, max / 448 * 0x1p-10F);
          break;
        case WeightFormat::kMxfp4:
          step = max / 4;  // between 4 and 6, or 6 and what saturates
          break;
        case WeightFormat::kInt8:
          step = max / 127 * 0.505F;
          break;
        case WeightFormat::kInt4:
          step = max * 0.3F;  // scales below the extreme clip it
          break;
        default:
          break;
      }
      ASSERT_LE(std::fabs(Element(layout, data, row, i) - w), step)
          << row << ", " << i;
    }
  }
}

TEST_P(PackedMatrixTest, NotANumberStaysInItsRow) {
  const auto layout = PackedLayout::For(GetParam(), 4, 64);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    auto weights = RandomFloats(4 * 64, 0.02F, 6);
    weights[2 * 64 + 40] = bad;
    const auto data = PackAll(layout, weights);
    EXPECT_FALSE(std::isfinite(Element(layout, data, 2, 40)));
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_TRUE(std::isfinite(Element(layout, data, 1, i)));
      EXPECT_TRUE(std::isfinite(Element(layout, data, 3, i)));
    }
  }
}

TEST_P(PackedMatrixTest, TinyWeightsBecomeZeroOrStayTiny) {
  const auto layout = PackedLayout::For(GetParam(), 1, 32);
  const std::vector<float> weights(32, 0x1p-130F);
  const auto data = PackAll(layout, weights);
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_LE(std::fabs(Element(layout, data, 0, i)), 0x1p-129F);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackedMatrixTest,
                         ::testing::ValuesIn(kPackedFormats),
                         [](const auto& test) {
                           return std::string(WeightFormatName(test.param));
                         });

// Weights that are hard to agree on, n of them.
struct HardWeights {
  std::string name;
  std::function<std::vector<float>(int64_t n)> make;
};

std::vector<float> Repeated(std::vector<float> values, int64_t n) {
  std::vector<float> repeated(n);
  // 7 and 16 have no common factor: each column gets all of them.
  for (int64_t i = 0; i < n; ++i) {
    repeated[i] = values[static_cast<size_t>(i * 7) % values.size()];
  }
  return repeated;
}

// Random ones times `scale`; at one of `rarity` places one of `values` instead.
std::vector<float> Mixed(int64_t n, float scale,
                         const std::vector<float>& values, int rarity) {
  auto weights = RandomFloats(n, 1.0F, 11);
  std::mt19937_64 engine(12);
  for (float& weight : weights) {
    weight *= scale;
    if (engine() % static_cast<uint64_t>(rarity) == 0) {
      weight = values[engine() % values.size()];
    }
  }
  return weights;
}

std::vector<HardWeights> AllHardWeights() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMax = std::numeric_limits<float>::max();
  return {
      {"Gaussian", [](int64_t n) { return RandomFloats(n, 0.02F, 9); }},
      {"GaussianBF16",
       [](int64_t n) {
         auto weights = RandomFloats(n, 0.02F, 10);
         for (float& w : weights) w = BF16ToFloat(FloatToBF16(w));
         return weights;
       }},
      {"Zeros", [](int64_t n) { return std::vector<float>(n, 0.0F); }},
      {"NegativeZeros", [](int64_t n) { return std::vector<float>(n, -0.0F); }},
      {"MostlyZeros",
       [](int64_t n) {
         return Mixed(n, 0.0F, {1, -1, -0.0F, 0.5F}, 40);
       }},
      {"SmallIntegers",
       [](int64_t n) {
         return Repeated(
             {-8, 7, 0, 1, -1, 3.5F, -3.5F, 2.5F, 0.5F, -0.5F, 1.5F}, n);
       }},
      // Halfway between codes of int8 (extreme 127), of e4m3 (448) and e2m1
      // (6).
      {"TiesOfInt8",
       [](int64_t n) {
         return Repeated(
             {127, -127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 63.5F, 126.5F}, n);
       }},
      {"TiesOfFp8",
       [](int64_t n) {
         return Repeated({448, -448, 0x1p-10F, 0x3p-10F, -0x5p-10F, 0x1.1p0F,
                          0x1.3p0F, -0x1.dp3F, 0x1.fp-7F, 0x1.ffp-7F, 432, 416},
                         n);
       }},
      {"TiesOfMxfp4",
       [](int64_t n) {
         return Repeated({6, -6, 0.25F, 0.75F, 1.25F, -1.75F, 2.5F, 3.5F, 5, -5,
                          5.5F, 7.5F, 7.9F, -0.25F, 0.125F},
                         n);
       }},
      {"TiesOfHalves",
       [](int64_t n) {
         return Repeated(
             {1 + 0x1p-8F, 1 + 0x3p-8F, 1 + 0x1p-11F, -1 - 0x3p-11F, 65519.9F,
              65520, -65504, 0x1p-25F, 0x1.8p-25F, 0x1p-14F, 0x1.ffcp-15F,
              0x1.ffep-15F, -0x3p-25F, 1e6F},
             n);
       }},
      {"Subnormal",
       [](int64_t n) {
         return Mixed(n, 0x1p-130F, {0, -0.0F}, 5);
       }},
      {"SubnormalAndNot",
       [](int64_t n) {
         return Mixed(n, 0x1p-130F, {1, -0x1p-60F}, 50);
       }},
      {"AroundTheTiniest",
       [](int64_t n) {
         return Mixed(n, 0x1p-101F,
                      {0x1p-100F, -0x1p-100F, 0x1.fffffep-101F, 0}, 20);
       }},
      {"Huge",
       [](int64_t n) {
         return Mixed(n, 0x1p125F, {kMax, -kMax, 0x1p127F, 1}, 20);
       }},
      {"AllHuge",
       [](int64_t n) {
         return Mixed(n, 0.0F, {kMax, -kMax}, 1);
       }},
      {"WideRange",
       [](int64_t n) {
         auto weights = RandomFloats(n, 20.0F, 13);
         for (float& w : weights) w = std::exp2(w);
         return weights;
       }},
      {"NotFinite",
       [](int64_t n) {
         return Mixed(n, 0.02F, {kNaN, -kNaN, kInf, -kInf}, 100);
       }},
      {"MostlyNotFinite",
       [](int64_t n) {
         return Mixed(n, 0.02F, {kNaN, kInf, -kInf, 1}, 2);
       }},
      // Any bits: signalling NaN, and all exponents.
      {"AnyBits",
       [](int64_t n) {
         std::vector<float> weights(n);
         std::mt19937 engine(14);
         for (float& w : weights)
           w = std::bit_cast<float>(static_cast<uint32_t>(engine()));
         return weights;
       }},
  };
}

TEST_P(PackedMatrixTest, EveryInstructionSetWritesTheBytesOfTheReference) {
  for (const auto& [n, k] :
       std::vector<std::pair<int64_t, int64_t>>{{16, 128},
                                                {1, 1},
                                                {5, 7},
                                                {16, 3},
                                                {17, 33},
                                                {33, 96},
                                                {40, 517},
                                                {19, 130},
                                                {2, 1024}}) {
    const auto layout = PackedLayout::For(GetParam(), n, k);
    for (const HardWeights& hard : AllHardWeights()) {
      const auto weights = hard.make(n * k);
      for (int64_t p = 0; p < layout.panels(); ++p) {
        std::vector<uint8_t> want(layout.panel_bytes(), 0x55);
        ReferencePackPanel(layout, ReaderOf(weights, k), p, want.data());
        for (const Kernels* kernels : AllKernels()) {
          std::vector<uint8_t> got(layout.panel_bytes(), 0xaa);
          PackPanel(layout, ReaderOf(weights, k), p, got.data(), *kernels);
          ASSERT_EQ(got, want) << hard.name << " " << n << "x" << k
                               << ", panel " << p << ", " << kernels->isa;
        }
      }
    }
  }
}

struct CodedCase {
  std::string name;
  WeightFormat format;
  int64_t group;
  DType scale_dtype;
  bool zero_points = false;
};

class PackedCodesTest : public ::testing::TestWithParam<CodedCase> {};

TEST_P(PackedCodesTest, CarriesCodesScalesAndZeroPointsOverUnchanged) {
  const auto& param = GetParam();
  const int64_t n = 19;
  const int64_t k = 333;
  PackedLayout layout{.format = param.format,
                      .n = n,
                      .k = k,
                      .group = param.group,
                      .scale_dtype = param.scale_dtype,
                      .zero_points = param.zero_points};
  const auto code_of = [&](int64_t row, int64_t col) {
    const auto code = static_cast<uint8_t>(row * 31 + col * 7);
    if (param.format == WeightFormat::kFp8) {
      return static_cast<uint8_t>((code & 0x7f) == 0x7f ? 0 : code);
    }
    return param.format == WeightFormat::kInt8
               ? code
               : static_cast<uint8_t>(code & 0xf);
  };
  const auto scale_of = [&](int64_t row, int64_t col) {
    return std::ldexp(param.scale_dtype == DType::kF8E8M0 ? 1.0F : 1.25F,
                      static_cast<int>((row + col / param.group) % 9 - 4));
  };
  const auto zero_point_of = [&](int64_t row, int64_t col) {
    return static_cast<int>((row * 5 + col / param.group) % 17);
  };
  const auto value_of = [&](uint8_t code, int zero_point) {
    switch (param.format) {
      case WeightFormat::kFp8:
        return F8E4M3ToFloat(code);
      case WeightFormat::kMxfp4:
        return F4E2M1ToFloat(code);
      case WeightFormat::kInt8:
        return static_cast<float>(static_cast<int8_t>(code));
      default:
        return static_cast<float>(code - zero_point);
    }
  };
  std::vector<uint8_t> data(layout.bytes(), 0xaa);
  std::vector<uint8_t> want(layout.bytes(), 0x55);
  for (int64_t p = 0; p < layout.panels(); ++p) {
    const int64_t at = p * layout.panel_bytes();
    PackCodedPanel(layout, CodeReaderOf(layout, code_of), scale_of,
                   zero_point_of, p, &data[at]);
    ReferencePackCodedPanel(layout, code_of, scale_of, zero_point_of, p,
                            &want[at]);
  }
  EXPECT_EQ(data, want);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      const int zero_point = param.zero_points ? zero_point_of(row, col) : 8;
      ASSERT_EQ(Element(layout, data, row, col),
                value_of(code_of(row, col), zero_point) * scale_of(row, col));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PackedCodesTest,
    ::testing::Values(
        CodedCase{"Fp8Blocks", WeightFormat::kFp8, 128, DType::kF32},
        CodedCase{"Fp8Rows", WeightFormat::kFp8, 352, DType::kBF16},
        CodedCase{"Mxfp8", WeightFormat::kFp8, 32, DType::kF8E8M0},
        CodedCase{"Mxfp4", WeightFormat::kMxfp4, 32, DType::kF8E8M0},
        CodedCase{"Int4Kimi", WeightFormat::kInt4, 32, DType::kBF16},
        CodedCase{"Int4Gptq", WeightFormat::kInt4, 128, DType::kF16},
        CodedCase{"Int4Awq", WeightFormat::kInt4, 128, DType::kF16, true},
        CodedCase{"Int4ZeroPointsOfRows", WeightFormat::kInt4, 352, DType::kF32,
                  true},
        CodedCase{"Int8", WeightFormat::kInt8, 64, DType::kF32}),
    [](const auto& test) { return test.param.name; });

TEST(PackedCodesTest, AnFp8NaNMakesItsGroupNaN) {
  PackedLayout layout = PackedLayout::For(WeightFormat::kFp8, 1, 256);
  std::vector<uint8_t> data(layout.bytes());
  PackCodedPanel(
      layout,
      [](int64_t, int64_t col, int64_t count, uint8_t* out) {
        for (int64_t i = 0; i < count; ++i) {
          out[i] = col + i == 200 ? 0x7f : 0x38;
        }
      },
      [](int64_t, int64_t) { return 1.0F; }, [](int64_t, int64_t) { return 8; },
      0, data.data());
  EXPECT_EQ(Element(layout, data, 0, 100), 1.0F);
  EXPECT_TRUE(std::isnan(Element(layout, data, 0, 200)));
}

}  // namespace
}  // namespace moe

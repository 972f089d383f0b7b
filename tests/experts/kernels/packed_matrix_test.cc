#include "experts/kernels/packed_matrix.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/experts/kernels/packed_experts.h"

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

struct CodedCase {
  std::string name;
  WeightFormat format;
  int64_t group;
  DType scale_dtype;
};

class PackedCodesTest : public ::testing::TestWithParam<CodedCase> {};

TEST_P(PackedCodesTest, CarriesCodesAndScalesOverUnchanged) {
  const auto& param = GetParam();
  const int64_t n = 19;
  const int64_t k = 330;
  PackedLayout layout{.format = param.format,
                      .n = n,
                      .k = k,
                      .group = param.group,
                      .scale_dtype = param.scale_dtype};
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
  const auto value_of = [&](uint8_t code) {
    switch (param.format) {
      case WeightFormat::kFp8:
        return F8E4M3ToFloat(code);
      case WeightFormat::kMxfp4:
        return F4E2M1ToFloat(code);
      case WeightFormat::kInt8:
        return static_cast<float>(static_cast<int8_t>(code));
      default:
        return static_cast<float>(code) - 8.0F;
    }
  };
  std::vector<uint8_t> data(layout.bytes());
  for (int64_t p = 0; p < layout.panels(); ++p) {
    PackCodedPanel(
        layout,
        [&](int64_t row, int64_t col, absl::Span<uint8_t> out) {
          for (size_t i = 0; i < out.size(); ++i) {
            out[i] = code_of(row, col + static_cast<int64_t>(i));
          }
        },
        scale_of, p, &data[p * layout.panel_bytes()]);
  }
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      ASSERT_EQ(Element(layout, data, row, col),
                value_of(code_of(row, col)) * scale_of(row, col));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PackedCodesTest,
    ::testing::Values(
        CodedCase{"Fp8Blocks", WeightFormat::kFp8, 128, DType::kF32},
        CodedCase{"Fp8Rows", WeightFormat::kFp8, 330, DType::kBF16},
        CodedCase{"Mxfp8", WeightFormat::kFp8, 32, DType::kF8E8M0},
        CodedCase{"Mxfp4", WeightFormat::kMxfp4, 32, DType::kF8E8M0},
        CodedCase{"Int4Kimi", WeightFormat::kInt4, 32, DType::kBF16},
        CodedCase{"Int4Gptq", WeightFormat::kInt4, 128, DType::kF16},
        CodedCase{"Int8", WeightFormat::kInt8, 64, DType::kF32}),
    [](const auto& test) { return test.param.name; });

TEST(PackedCodesTest, AnFp8NaNMakesItsGroupNaN) {
  PackedLayout layout = PackedLayout::For(WeightFormat::kFp8, 1, 256);
  std::vector<uint8_t> data(layout.bytes());
  PackCodedPanel(
      layout,
      [](int64_t, int64_t col, absl::Span<uint8_t> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = col + static_cast<int64_t>(i) == 200 ? 0x7f : 0x38;
        }
      },
      [](int64_t, int64_t) { return 1.0F; }, 0, data.data());
  EXPECT_EQ(Element(layout, data, 0, 100), 1.0F);
  EXPECT_TRUE(std::isnan(Element(layout, data, 0, 200)));
}

}  // namespace
}  // namespace moe

#include "experts/pack_stored.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

// 4-bit integers [16, 128], with a scale of 0.5 and a zero point for every row
// and 64 columns.
class PackStoredTest : public ::testing::Test {
 protected:
  PackStoredTest()
      : zeros_{0x33333333U, 0xfedcba98U, 0x76543210U, 0x8f0f8f0fU},
        scales_(32, 0.5F) {
    for (uint32_t i = 0; i < 16 * 128 / 8; ++i) {
      words_.push_back(i * 2654435761U);
    }
    matrix_.rows = 16;
    matrix_.cols = 128;
    matrix_.coding = StoredCoding::kInt4;
    matrix_.data = reinterpret_cast<const uint8_t*>(words_.data());
    matrix_.row_stride = 128;
    matrix_.scales = reinterpret_cast<const uint8_t*>(scales_.data());
    matrix_.scale_rows.stride = 2;
    matrix_.scale_cols = {.block = 64, .stride = 1};
    matrix_.zero_row_stride = 2;
    matrix_.zero_col_stride = 1;
  }

  // The largest difference between what is packed and what is stored.
  float LargestError(const PackedLayout& layout) const {
    std::vector<uint8_t> panel(static_cast<size_t>(layout.panel_bytes()));
    PackStoredPanel(layout, matrix_, 0, panel.data());
    float largest = 0;
    for (int64_t row = 0; row < 16; ++row) {
      std::vector<float> values(128);
      matrix_.Read(row, 0, absl::MakeSpan(values));
      for (int64_t col = 0; col < 128; ++col) {
        const float packed = UnpackedElement(layout, panel.data(), row, col);
        largest = std::max(largest,
                           std::abs(packed - values[static_cast<size_t>(col)]));
      }
    }
    return largest;
  }

  std::vector<uint32_t> words_;
  std::vector<uint32_t> zeros_;
  std::vector<float> scales_;
  StoredMatrix matrix_;
};

TEST_F(PackStoredTest, CarriesCodesOver) {
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kInt4}) {
    const PackedLayout layout = LayoutFor(format, matrix_);
    EXPECT_EQ(layout.format, WeightFormat::kInt4);
    EXPECT_EQ(layout.group, 64);
    EXPECT_EQ(layout.scale_dtype, DType::kF32);
    EXPECT_FALSE(layout.zero_points);
    EXPECT_EQ(LargestError(layout), 0);
  }
}

TEST_F(PackStoredTest, CarriesZeroPointsOver) {
  matrix_.zeros = reinterpret_cast<const uint8_t*>(zeros_.data());
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kInt4}) {
    const PackedLayout layout = LayoutFor(format, matrix_);
    EXPECT_EQ(layout.format, WeightFormat::kInt4);
    EXPECT_EQ(layout.group, 64);
    EXPECT_TRUE(layout.zero_points);
    EXPECT_EQ(LargestError(layout), 0);
  }
}

// As a gate_proj without zero points beside an up_proj that has them.
TEST_F(PackStoredTest, TheMiddleIsAZeroPointToo) {
  PackedLayout layout = LayoutFor(WeightFormat::kAuto, matrix_);
  layout.zero_points = true;
  EXPECT_EQ(LargestError(layout), 0);
}

TEST_F(PackStoredTest, WidensExactly) {
  matrix_.zeros = reinterpret_cast<const uint8_t*>(zeros_.data());
  EXPECT_EQ(LargestError(LayoutFor(WeightFormat::kF32, matrix_)), 0);
}

}  // namespace
}  // namespace moe

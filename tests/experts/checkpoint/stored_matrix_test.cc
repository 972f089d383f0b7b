#include "experts/checkpoint/stored_matrix.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::ElementsAre;

// Row `row` of a matrix, read in pieces of two columns.
std::vector<float> RowOf(const StoredMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  matrix.Read(row, 0, absl::MakeSpan(values));
  std::vector<float> pieces(values.size());
  for (size_t col = 0; col < values.size(); col += 2) {
    matrix.Read(row, static_cast<int64_t>(col),
                absl::MakeSpan(pieces).subspan(col, 2));
  }
  EXPECT_EQ(pieces, values) << "a piece differs from the whole";
  return values;
}

// [3, 4] with the value 10 * row + col.
class StoredMatrixTest : public ::testing::Test {
 protected:
  StoredMatrixTest() {
    for (int row = 0; row < 3; ++row) {
      for (int col = 0; col < 4; ++col) {
        values_.push_back(static_cast<float>(10 * row + col));
      }
    }
    matrix_.rows = 3;
    matrix_.cols = 4;
    matrix_.row_stride = 4;
    matrix_.data = reinterpret_cast<const uint8_t*>(values_.data());
  }

  std::vector<float> values_;
  StoredMatrix matrix_;
};

TEST_F(StoredMatrixTest, ReadsRows) {
  EXPECT_THAT(RowOf(matrix_, 1), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(matrix_.bytes(), 48);
}

TEST_F(StoredMatrixTest, ReadsAtAnyAlignment) {
  std::vector<uint8_t> shifted(49);
  std::memcpy(shifted.data() + 1, values_.data(), 48);
  matrix_.data = shifted.data() + 1;
  EXPECT_THAT(RowOf(matrix_, 2), ElementsAre(20, 21, 22, 23));
}

TEST_F(StoredMatrixTest, TakesRows) {
  const StoredMatrix half = matrix_.Rows(1, 2);
  EXPECT_EQ(half.rows, 2);
  EXPECT_THAT(RowOf(half, 0), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(RowOf(half, 1), ElementsAre(20, 21, 22, 23));
  const StoredMatrix even = matrix_.Rows(0, 2, 2);
  EXPECT_THAT(RowOf(even, 1), ElementsAre(20, 21, 22, 23));
  EXPECT_EQ(matrix_.Rows(3, 0).rows, 0);
}

TEST_F(StoredMatrixTest, TakesColumns) {
  EXPECT_THAT(RowOf(matrix_.Cols(2, 2), 1), ElementsAre(12, 13));
  EXPECT_THAT(RowOf(matrix_.Cols(1, 2, 2), 2), ElementsAre(21, 23));
}

TEST_F(StoredMatrixTest, Transposes) {
  const StoredMatrix turned = matrix_.Transposed();
  EXPECT_EQ(turned.rows, 4);
  EXPECT_EQ(turned.cols, 3);
  std::vector<float> column(3);
  turned.Read(3, 0, absl::MakeSpan(column));
  EXPECT_THAT(column, ElementsAre(3, 13, 23));
  EXPECT_THAT(RowOf(turned.Transposed(), 1), ElementsAre(10, 11, 12, 13));
}

TEST_F(StoredMatrixTest, DerivationsCompose) {
  // Odd columns, as rows: the up half of an interleaved [in, out] tensor.
  const StoredMatrix up = matrix_.Transposed().Rows(1, 2, 2);
  std::vector<float> row(3);
  up.Read(1, 0, absl::MakeSpan(row));
  EXPECT_THAT(row, ElementsAre(3, 13, 23));
  EXPECT_EQ(up.bytes(), 24);
}

TEST_F(StoredMatrixTest, NeedsNothingForAnEmptyRange) {
  matrix_.Read(0, 4, absl::Span<float>());
  EXPECT_EQ(matrix_.Rows(0, 0).bytes(), 0);
  EXPECT_TRUE(matrix_.Rows(0, 0).DataExtent().empty());
}

TEST_F(StoredMatrixTest, ExtentsSpanFirstToLastElement) {
  const auto offset = [this](const StoredMatrix& part) {
    return part.DataExtent().data() - matrix_.data;
  };
  const StoredMatrix rows = matrix_.Rows(1, 2);
  EXPECT_EQ(offset(rows), 16);
  EXPECT_EQ(rows.DataExtent().size(), 32U);
  const StoredMatrix cols = matrix_.Cols(1, 2);
  EXPECT_EQ(offset(cols), 4);
  EXPECT_EQ(cols.DataExtent().size(), 40U);
  EXPECT_TRUE(matrix_.ScaleExtent().empty());
}

// A block anywhere must be what Read gives, and nothing around it written.
void CheckBlocks(const StoredMatrix& matrix) {
  for (const int64_t row : {int64_t{0}, matrix.rows / 3}) {
    for (const int64_t col : {int64_t{0}, matrix.cols / 3}) {
      const int64_t rows = matrix.rows - row;
      const int64_t cols = matrix.cols - col;
      const int64_t stride = cols + 3;
      std::vector<float> block(static_cast<size_t>(rows * stride), -1.0F);
      matrix.ReadBlock(row, col, Matrix(block.data(), rows, cols, stride));
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> want(static_cast<size_t>(cols));
        matrix.Read(row + r, col, absl::MakeSpan(want));
        want.resize(static_cast<size_t>(stride), -1.0F);
        const float* got = block.data() + r * stride;
        ASSERT_EQ(std::vector<float>(got, got + stride), want)
            << "block at " << row << ", " << col << "; row " << r;
      }
    }
  }
}

TEST(ReadBlockTest, GivesWhatReadGives) {
  constexpr int64_t kRows = 71;
  constexpr int64_t kCols = 104;
  std::vector<uint8_t> data(kRows * kCols * 2);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<uint8_t>(i * 37 / 5 % 0x70);  // no NaN in any type
  }
  std::vector<float> scales;
  for (int i = 0; i < 1000; ++i) scales.push_back(static_cast<float>(i % 13));

  StoredMatrix plain;
  plain.rows = kRows;
  plain.cols = kCols;
  plain.dtype = DType::kF16;
  plain.data = data.data();
  plain.row_stride = kCols;
  StoredMatrix scaled = plain;
  scaled.coding = StoredCoding::kScaled;
  scaled.dtype = DType::kF8E4M3;
  scaled.scales = reinterpret_cast<const uint8_t*>(scales.data());
  scaled.scale_rows = {.block = 10, .stride = 11};
  scaled.scale_cols = {.block = 10, .stride = 1};
  for (const StoredMatrix& matrix : {plain, scaled}) {
    CheckBlocks(matrix);
    CheckBlocks(matrix.Transposed());
    CheckBlocks(matrix.Transposed().Rows(1, kCols / 2, 2));
    CheckBlocks(matrix.Transposed().Rows(50, 1));
  }
  StoredMatrix packed = scaled;
  packed.coding = StoredCoding::kInt4;
  CheckBlocks(packed);
  StoredMatrix gptq = packed;
  gptq.packing = NibblePacking::kColumnWords;
  gptq.row_stride = 8;
  gptq.col_stride = kRows * 8;
  CheckBlocks(gptq);
}

// The value of a code, times its scale, must be what Read gives.
void CheckCodes(const StoredMatrix& matrix, float (*value)(uint8_t code)) {
  const bool nibbles = matrix.coding != StoredCoding::kScaled;
  for (const auto& [row, col, count] : std::vector<std::array<int64_t, 3>>{
           {0, 0, matrix.cols}, {5, 16, 33}, {7, 40, 1}, {3, 8, 4}}) {
    std::vector<uint8_t> codes(static_cast<size_t>(count), 0xff);
    matrix.ReadCodes(row, col, count, codes.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto code = static_cast<uint8_t>(
          nibbles ? codes[at / 2] >> (i % 2 * 4) & 0xf : codes[at]);
      float want = 0;
      matrix.Read(row, col + i, absl::MakeSpan(&want, 1));
      ASSERT_EQ(value(code) * matrix.Scale(row, col + i), want)
          << row << ", " << col + i;
    }
  }
}

TEST(ReadCodesTest, GivesTheCodesBehindTheValues) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kCols = 80;
  std::vector<uint8_t> data(kRows * kCols);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<uint8_t>(i * 37 / 5 % 0x70);  // no NaN in E4M3
  }
  const std::vector<float> scales = {2.0F};
  StoredMatrix matrix;
  matrix.rows = kRows;
  matrix.cols = kCols;
  matrix.dtype = DType::kF8E4M3;
  matrix.data = data.data();
  matrix.row_stride = kCols;
  matrix.scales = reinterpret_cast<const uint8_t*>(scales.data());
  matrix.coding = StoredCoding::kScaled;
  CheckCodes(matrix, F8E4M3ToFloat);
  CheckCodes(matrix.Transposed(), F8E4M3ToFloat);
  matrix.coding = StoredCoding::kMxfp4;
  CheckCodes(matrix, F4E2M1ToFloat);
  const auto int4 = [](uint8_t code) { return static_cast<float>(code) - 8; };
  matrix.coding = StoredCoding::kInt4;
  CheckCodes(matrix, int4);
  matrix.packing = NibblePacking::kColumnWords;
  matrix.row_stride = 8;
  matrix.col_stride = 8 * kRows;
  CheckCodes(matrix, int4);
  matrix.packing = NibblePacking::kRowWords;
  matrix.col_stride = kRows;
  CheckCodes(matrix, int4);
}

TEST(ReadBlockTest, NeedsNothingForAnEmptyBlock) {
  StoredMatrix matrix;
  matrix.rows = 4;
  matrix.cols = 4;
  matrix.row_stride = 1;
  matrix.col_stride = 4;
  matrix.ReadBlock(0, 0, Matrix(nullptr, 0, 4));
  matrix.ReadBlock(0, 0, Matrix(nullptr, 4, 0));
  EXPECT_EQ(matrix.Rows(0, 0).bytes(), 0);
}

TEST_F(StoredMatrixTest, DiesOfRowsThatAreNotThere) {
  EXPECT_DEATH(matrix_.Rows(2, 2), "check failed");
  EXPECT_DEATH(matrix_.Rows(-1, 1), "check failed");
  EXPECT_DEATH(matrix_.Cols(1, 2, 3), "check failed");
}

// F8_E4M3 [5, 7], all ones, with float scales per block of [2, 3]: 1, 2, ...
class ScaledMatrixTest : public ::testing::Test {
 protected:
  ScaledMatrixTest() : codes_(35, 0x38) {
    for (int i = 1; i <= 9; ++i) scales_.push_back(static_cast<float>(i));
    matrix_.rows = 5;
    matrix_.cols = 7;
    matrix_.coding = StoredCoding::kScaled;
    matrix_.dtype = DType::kF8E4M3;
    matrix_.data = codes_.data();
    matrix_.row_stride = 7;
    matrix_.scales = reinterpret_cast<const uint8_t*>(scales_.data());
    matrix_.scale_rows = {.block = 2, .stride = 3};
    matrix_.scale_cols = {.block = 3, .stride = 1};
  }

  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  StoredMatrix matrix_;
};

TEST_F(ScaledMatrixTest, AppliesTheScaleOfEachBlock) {
  EXPECT_THAT(RowOf(matrix_, 0), ElementsAre(1, 1, 1, 2, 2, 2, 3));
  EXPECT_THAT(RowOf(matrix_, 1), ElementsAre(1, 1, 1, 2, 2, 2, 3));
  EXPECT_THAT(RowOf(matrix_, 4), ElementsAre(7, 7, 7, 8, 8, 8, 9));
  EXPECT_EQ(matrix_.bytes(), 35 + 9 * 4);
  EXPECT_EQ(matrix_.DataExtent().size(), 35U);
  EXPECT_EQ(matrix_.ScaleExtent().size(), 36U);
}

TEST_F(ScaledMatrixTest, SlicesKeepTheBlocksOfTheWholeTensor) {
  const StoredMatrix rows = matrix_.Rows(1, 3);
  EXPECT_THAT(RowOf(rows, 0), ElementsAre(1, 1, 1, 2, 2, 2, 3));
  EXPECT_THAT(RowOf(rows, 1), ElementsAre(4, 4, 4, 5, 5, 5, 6));
  EXPECT_THAT(RowOf(rows.Rows(2, 1), 0), ElementsAre(4, 4, 4, 5, 5, 5, 6));
  EXPECT_EQ(rows.bytes(), 21 + 6 * 4);
  EXPECT_EQ(rows.ScaleExtent().size(), 24U);
  EXPECT_THAT(RowOf(matrix_.Cols(2, 3), 4), ElementsAre(7, 8, 8));
  // Steps across and within blocks.
  EXPECT_THAT(RowOf(matrix_.Rows(1, 2, 3), 1),
              ElementsAre(7, 7, 7, 8, 8, 8, 9));
  EXPECT_THAT(RowOf(matrix_.Cols(1, 3, 2), 0), ElementsAre(1, 2, 2));
  EXPECT_THAT(RowOf(matrix_.Cols(0, 2, 6), 0), ElementsAre(1, 3));
}

TEST_F(ScaledMatrixTest, TransposesWithItsScales) {
  const StoredMatrix turned = matrix_.Transposed();
  EXPECT_THAT(RowOf(turned.Transposed(), 2), ElementsAre(4, 4, 4, 5, 5, 5, 6));
  std::vector<float> column(5);
  turned.Read(3, 0, absl::MakeSpan(column));
  EXPECT_THAT(column, ElementsAre(2, 2, 5, 5, 8));
}

TEST_F(ScaledMatrixTest, ScalesMayBePerRowColumnOrMatrix) {
  matrix_.scale_rows = {.block = 1, .stride = 1};
  matrix_.scale_cols = {};
  EXPECT_THAT(RowOf(matrix_, 3), ElementsAre(4, 4, 4, 4, 4, 4, 4));
  EXPECT_EQ(matrix_.bytes(), 35 + 5 * 4);
  matrix_.scale_rows = {};
  matrix_.scale_cols = {.block = 1, .stride = 1};
  EXPECT_THAT(RowOf(matrix_, 3), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  matrix_.scale_cols = {};
  EXPECT_THAT(RowOf(matrix_, 4), ElementsAre(1, 1, 1, 1, 1, 1, 1));
  EXPECT_EQ(matrix_.bytes(), 35 + 4);
}

TEST_F(ScaledMatrixTest, ReadsScalesOfEveryType) {
  matrix_.scale_rows = {};
  matrix_.scale_cols = {};
  const auto first_with = [this](DType dtype, uint16_t bits) {
    matrix_.scale_dtype = dtype;
    matrix_.scales = reinterpret_cast<const uint8_t*>(&bits);
    return RowOf(matrix_, 0)[0];
  };
  EXPECT_EQ(first_with(DType::kBF16, FloatToBF16(0.75F)), 0.75F);
  EXPECT_EQ(first_with(DType::kF16, FloatToF16(0.1F)),
            F16ToFloat(FloatToF16(0.1F)));
  EXPECT_EQ(first_with(DType::kF8E8M0, 120), 0x1p-7F);
}

TEST_F(ScaledMatrixTest, KeepsEveryCode) {
  for (int code = 0; code < 35; ++code) {
    codes_[static_cast<size_t>(code)] = static_cast<uint8_t>(code * 7);
  }
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t col = 0; col < 7; ++col) {
      const float want =
          F8E4M3ToFloat(static_cast<uint8_t>((row * 7 + col) * 7)) *
          static_cast<float>(1 + row / 2 * 3 + col / 3);
      EXPECT_EQ(RowOf(matrix_, row)[static_cast<size_t>(col)], want);
    }
  }
}

TEST(NibbleMatrixTest, ReadsMxfp4LowNibbleFirst) {
  // Two rows of 40 columns (1.25 groups) in 32-byte rows: code = column % 16.
  std::vector<uint8_t> codes(64);
  for (size_t i = 0; i < 64; ++i) {
    const size_t col = i % 32 * 2;
    codes[i] = static_cast<uint8_t>(col % 16 + (col + 1) % 16 * 16);
  }
  const std::vector<uint8_t> scales = {127, 128, 129, 126};
  StoredMatrix matrix;
  matrix.rows = 2;
  matrix.cols = 40;
  matrix.coding = StoredCoding::kMxfp4;
  matrix.data = codes.data();
  matrix.row_stride = 64;
  matrix.scales = scales.data();
  matrix.scale_dtype = DType::kF8E8M0;
  matrix.scale_rows.stride = 2;
  matrix.scale_cols = {.block = 32, .stride = 1};
  const float factors[2][2] = {{1, 2}, {4, 0.5F}};
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<float> values = RowOf(matrix, row);
    for (size_t col = 0; col < 40; ++col) {
      EXPECT_EQ(values[col], F4E2M1ToFloat(static_cast<uint8_t>(col % 16)) *
                                 factors[row][col / 32])
          << row << " " << col;
    }
  }
  EXPECT_EQ(RowOf(matrix.Rows(1, 1), 0), RowOf(matrix, 1));
  EXPECT_EQ(matrix.bytes(), 40 + 4);
  EXPECT_EQ(matrix.DataExtent().size(), 32U + 20U);
  EXPECT_DEATH(matrix.Transposed(), "check failed");
  EXPECT_DEATH(matrix.Cols(0, 1), "check failed");
}

TEST(NibbleMatrixTest, ReadsInt4AlongTheColumns) {
  // Values -8 ... 7 in two words, one group of 8 columns each.
  const std::vector<uint32_t> words = {0x76543210, 0xfedcba98};
  const std::vector<float> scales = {1, 0.5F};
  StoredMatrix matrix;
  matrix.rows = 1;
  matrix.cols = 16;
  matrix.coding = StoredCoding::kInt4;
  matrix.data = reinterpret_cast<const uint8_t*>(words.data());
  matrix.row_stride = 16;
  matrix.scales = reinterpret_cast<const uint8_t*>(scales.data());
  matrix.scale_cols = {.block = 8, .stride = 1};
  EXPECT_THAT(RowOf(matrix, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0,
                                            0.5F, 1, 1.5F, 2, 2.5F, 3, 3.5F));
}

TEST(NibbleMatrixTest, ReadsWordsOfColumns) {
  // qweight [2, 3]: 16 columns of three rows; one group.
  const std::vector<uint32_t> words = {0x76543210, 0x11111111, 0x88888888,
                                       0xfedcba98, 0x22222222, 0x99999999};
  const std::vector<float> scales = {1, 2, 3};
  StoredMatrix matrix;
  matrix.rows = 3;
  matrix.cols = 16;
  matrix.coding = StoredCoding::kInt4;
  matrix.packing = NibblePacking::kColumnWords;
  matrix.data = reinterpret_cast<const uint8_t*>(words.data());
  matrix.row_stride = 8;
  matrix.col_stride = 24;
  matrix.scales = reinterpret_cast<const uint8_t*>(scales.data());
  matrix.scale_rows.stride = 1;
  matrix.scale_cols = {.block = 16, .stride = 3};
  EXPECT_THAT(RowOf(matrix, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0,
                                            1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(RowOf(matrix, 1),
              ElementsAre(-14, -14, -14, -14, -14, -14, -14, -14, -12, -12, -12,
                          -12, -12, -12, -12, -12));
  EXPECT_THAT(RowOf(matrix.Rows(2, 1), 0),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3));
  EXPECT_EQ(matrix.DataExtent().size(), 24U);
  EXPECT_EQ(matrix.ScaleExtent().size(), 12U);
}

TEST(NibbleMatrixTest, ReadsWordsOfRows) {
  // qweight [2, 1]: eight rows of two columns, rows 0, 2, 4, 6, 1, 3, 5, 7 from
  // the low nibble on.
  const std::vector<uint32_t> words = {0x75316420, 0xfdb9eca8};
  const std::vector<float> scales = {1, 1, 1, 1, 1, 1, 1, 2};
  StoredMatrix matrix;
  matrix.rows = 8;
  matrix.cols = 2;
  matrix.coding = StoredCoding::kInt4;
  matrix.packing = NibblePacking::kRowWords;
  matrix.data = reinterpret_cast<const uint8_t*>(words.data());
  matrix.row_stride = 8;
  matrix.col_stride = 8;
  matrix.scales = reinterpret_cast<const uint8_t*>(scales.data());
  matrix.scale_rows.stride = 1;
  for (int row = 0; row < 7; ++row) {
    EXPECT_THAT(RowOf(matrix, row), ElementsAre(row - 8, row));
  }
  EXPECT_THAT(RowOf(matrix, 7), ElementsAre(-2, 14));
  EXPECT_EQ(matrix.ZeroPoint(7, 1), 8);
  EXPECT_EQ(matrix.bytes(), 8 + 32);
}

// A matrix of 4-bit integers with zero points in each packing, from loops that
// put every nibble in its place one by one.
class ZeroPointTest : public ::testing::TestWithParam<NibblePacking> {
 protected:
  static constexpr int64_t kRows = 40;
  static constexpr int64_t kCols = 168;
  static constexpr int64_t kGroup = 48;  // the last one is shorter
  static constexpr int64_t kGroups = 4;

  ZeroPointTest() : words_(kRows * kCols / 8), zeros_(kRows / 8 * kGroups) {
    const NibblePacking packing = GetParam();
    const bool along_rows = packing == NibblePacking::kRows;
    const std::array<int, 8> order =
        packing == NibblePacking::kRowWords
            ? std::array<int, 8>{0, 4, 1, 5, 2, 6, 3, 7}
            : std::array<int, 8>{0, 1, 2, 3, 4, 5, 6, 7};
    const auto put = [](std::vector<uint32_t>& to, int64_t word, int nibble,
                        int value) {
      to[static_cast<size_t>(word)] |= static_cast<uint32_t>(value)
                                       << (4 * nibble);
    };
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kCols; ++c) {
        switch (packing) {
          case NibblePacking::kRows:
            put(words_, (r * kCols + c) / 8, c % 8, Code(r, c));
            break;
          case NibblePacking::kColumnWords:
            put(words_, c / 8 * kRows + r, c % 8, Code(r, c));
            break;
          case NibblePacking::kRowWords:
            put(words_, c * kRows / 8 + r / 8, order[r % 8], Code(r, c));
        }
      }
      for (int64_t g = 0; g < kGroups; ++g) {
        put(zeros_, along_rows ? r / 8 * kGroups + g : g * kRows / 8 + r / 8,
            order[r % 8], Zero(r, g * kGroup));
        scales_.push_back(Scale(r, g * kGroup));
      }
    }
    matrix_.rows = kRows;
    matrix_.cols = kCols;
    matrix_.coding = StoredCoding::kInt4;
    matrix_.packing = packing;
    matrix_.data = reinterpret_cast<const uint8_t*>(words_.data());
    matrix_.row_stride = along_rows ? kCols : 8;
    matrix_.col_stride = along_rows                               ? 1
                         : packing == NibblePacking::kColumnWords ? 8 * kRows
                                                                  : kRows;
    matrix_.scales = reinterpret_cast<const uint8_t*>(scales_.data());
    matrix_.scale_rows.stride = kGroups;
    matrix_.scale_cols = {.block = kGroup, .stride = 1};
    matrix_.zeros = reinterpret_cast<const uint8_t*>(zeros_.data());
    matrix_.zero_row_stride = along_rows ? kGroups : 1;
    matrix_.zero_col_stride = along_rows ? 1 : kRows / 8;
  }

  static int Code(int64_t row, int64_t col) {
    return static_cast<int>((row * 7 + col * 5 + row * col / 3) % 16);
  }
  static int Zero(int64_t row, int64_t col) {
    return static_cast<int>((row * 5 + col / kGroup * 3 + row / 7) % 16);
  }
  static float Scale(int64_t row, int64_t col) {
    return 0.1F + static_cast<float>(row + 100 * (col / kGroup));
  }

  // Holds `part`, whose row r is row first + r * step, to the loops.
  static void Check(const StoredMatrix& part, int64_t first, int64_t step) {
    std::vector<float> block(static_cast<size_t>(part.rows * part.cols));
    part.ReadBlock(0, 0, Matrix(block.data(), part.rows, part.cols));
    std::vector<uint8_t> codes(static_cast<size_t>(part.cols) / 2);
    for (int64_t r = 0; r < part.rows; ++r) {
      const int64_t row = first + r * step;
      const std::vector<float> got = RowOf(part, r);
      part.ReadCodes(r, 0, part.cols, codes.data());
      for (int64_t c = 0; c < part.cols; ++c) {
        const auto at = static_cast<size_t>(c);
        const auto want = static_cast<float>(
            static_cast<double>(Code(row, c) - Zero(row, c)) *
            static_cast<double>(Scale(row, c)));
        ASSERT_EQ(got[at], want) << row << ", " << c;
        ASSERT_EQ(block[static_cast<size_t>(r * part.cols + c)], want);
        ASSERT_EQ(part.ZeroPoint(r, c), Zero(row, c)) << row << ", " << c;
        ASSERT_EQ(part.Scale(r, c), Scale(row, c));
        ASSERT_EQ(codes[at / 2] >> (c % 2 * 4) & 0xf, Code(row, c));
      }
    }
  }

  std::vector<uint32_t> words_;
  std::vector<uint32_t> zeros_;
  std::vector<float> scales_;
  StoredMatrix matrix_;
};

TEST_P(ZeroPointTest, IsTakenOffTheCode) {
  Check(matrix_, 0, 1);
  CheckBlocks(matrix_);
}

TEST_P(ZeroPointTest, RowsMayBeginAndStepAnywhereInAWord) {
  Check(matrix_.Rows(3, 20), 3, 1);
  Check(matrix_.Rows(1, 20, 2), 1, 2);
  Check(matrix_.Rows(5, 30).Rows(1, 9, 3), 6, 3);
  Check(matrix_.Rows(39, 1), 39, 1);
  CheckBlocks(matrix_.Rows(1, 20, 2));
}

TEST_P(ZeroPointTest, IsTheMiddleWhereNoneIsStored) {
  EXPECT_TRUE(matrix_.has_zero_points());
  const int64_t bytes = matrix_.bytes();
  matrix_.zeros = nullptr;
  EXPECT_FALSE(matrix_.has_zero_points());
  EXPECT_EQ(matrix_.ZeroPoint(7, 100), 8);
  EXPECT_EQ(RowOf(matrix_, 7)[100],
            static_cast<float>(Code(7, 100) - 8) * Scale(7, 100));
  EXPECT_EQ(matrix_.bytes(), bytes - kRows * kGroups / 2);
  EXPECT_TRUE(matrix_.ZeroExtent().empty());
}

TEST_P(ZeroPointTest, MayBeStoredLessOneInWords) {
  // The words are one number each: 0 less one borrows from the next nibble.
  for (uint32_t& word : zeros_) word -= 0x11111111U;
  matrix_.zero_offset = 0x11111111U;
  Check(matrix_, 0, 1);
}

TEST_P(ZeroPointTest, ExtentsHoldAllThatIsRead) {
  const auto inside = [](absl::Span<const uint8_t> part, const auto& all) {
    const auto* begin = reinterpret_cast<const uint8_t*>(all.data());
    return part.data() >= begin &&
           part.data() + part.size() <= begin + all.size() * 4;
  };
  EXPECT_EQ(matrix_.DataExtent().size(), words_.size() * 4);
  EXPECT_EQ(matrix_.ZeroExtent().size(), zeros_.size() * 4);
  for (const StoredMatrix& part :
       {matrix_, matrix_.Rows(11, 3), matrix_.Rows(9, 5, 2)}) {
    ASSERT_TRUE(inside(part.DataExtent(), words_));
    ASSERT_TRUE(inside(part.ZeroExtent(), zeros_));
    // Without the rest of the memory.
    const std::vector<uint8_t> data(part.DataExtent().begin(),
                                    part.DataExtent().end());
    const std::vector<uint8_t> zeros(part.ZeroExtent().begin(),
                                     part.ZeroExtent().end());
    StoredMatrix copy = part;
    copy.data = data.data() - (part.DataExtent().data() - part.data);
    copy.zeros = zeros.data() - (part.ZeroExtent().data() - part.zeros);
    for (int64_t row = 0; row < part.rows; ++row) {
      EXPECT_EQ(RowOf(copy, row), RowOf(part, row));
    }
  }
  // Rows 11 to 13 lie in the second word.
  EXPECT_EQ(matrix_.Rows(11, 3).ZeroExtent().size(),
            GetParam() == NibblePacking::kRows ? 4 * kGroups
                                               : 4 * (3 * kRows / 8 + 1));
}

std::string PackingName(const ::testing::TestParamInfo<NibblePacking>& test) {
  switch (test.param) {
    case NibblePacking::kRows:
      return "Rows";
    case NibblePacking::kColumnWords:
      return "ColumnWords";
    case NibblePacking::kRowWords:
      return "RowWords";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(All, ZeroPointTest,
                         ::testing::Values(NibblePacking::kRows,
                                           NibblePacking::kColumnWords,
                                           NibblePacking::kRowWords),
                         PackingName);

}  // namespace
}  // namespace moe

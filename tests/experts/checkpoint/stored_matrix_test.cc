#include "experts/checkpoint/stored_matrix.h"

#include <cstdint>
#include <cstring>
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

TEST_F(StoredMatrixTest, DiesOfRowsThatAreNotThere) {
  EXPECT_DEATH(matrix_.Rows(2, 2), "check failed");
  EXPECT_DEATH(matrix_.Rows(-1, 1), "check failed");
  EXPECT_DEATH(matrix_.Cols(1, 2, 3), "check failed");
}

}  // namespace
}  // namespace moe

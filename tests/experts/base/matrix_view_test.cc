#include "experts/base/matrix_view.h"

#include <array>
#include <type_traits>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(MatrixViewTest, IsEmptyByDefault) {
  const Matrix view;
  EXPECT_EQ(view.data(), nullptr);
  EXPECT_EQ(view.rows(), 0);
  EXPECT_EQ(view.cols(), 0);
}

TEST(MatrixViewTest, RowsAreAdjacentUnlessAStrideIsGiven) {
  std::array<float, 12> memory{};
  const Matrix dense(memory.data(), 4, 3);
  EXPECT_EQ(dense.stride(), 3);
  EXPECT_EQ(dense.Row(3), memory.data() + 9);
  const Matrix strided(memory.data(), 3, 2, 4);
  EXPECT_EQ(strided.cols(), 2);
  EXPECT_EQ(strided.Row(2), memory.data() + 8);
}

TEST(MatrixViewTest, RowRangesKeepColumnsAndStride) {
  std::array<float, 20> memory{};
  const Matrix view(memory.data(), 5, 3, 4);
  const Matrix part = view.Rows(1, 3);
  EXPECT_EQ(part.rows(), 3);
  EXPECT_EQ(part.cols(), 3);
  EXPECT_EQ(part.stride(), 4);
  EXPECT_EQ(part.Row(0), view.Row(1));
  EXPECT_EQ(part.Row(2), view.Row(3));
  EXPECT_EQ(view.Rows(5, 0).rows(), 0);
}

TEST(MatrixViewTest, WritesGoThroughToTheMemory) {
  std::array<float, 6> memory{};
  const Matrix view(memory.data(), 2, 3);
  view.Row(1)[2] = 8;
  EXPECT_EQ(memory[5], 8);
}

TEST(MatrixViewTest, MutableViewsBecomeConstOnesAndNeverTheReverse) {
  std::array<float, 6> memory{};
  const ConstMatrix view = Matrix(memory.data(), 1, 2, 6);
  EXPECT_EQ(view.data(), memory.data());
  EXPECT_EQ(view.rows(), 1);
  EXPECT_EQ(view.cols(), 2);
  EXPECT_EQ(view.stride(), 6);
  static_assert(!std::is_convertible_v<ConstMatrix, Matrix>);
  static_assert(!std::is_convertible_v<MatrixView<int>, ConstMatrix>);
}

#ifndef NDEBUG
TEST(MatrixViewDeathTest, ChecksItsBoundsInDebugBuilds) {
  std::array<float, 6> memory{};
  const Matrix view(memory.data(), 2, 3);
  EXPECT_DEATH(view.Row(2), "check failed");
  EXPECT_DEATH(view.Row(-1), "check failed");
  EXPECT_DEATH(view.Rows(1, 2), "check failed");
  EXPECT_DEATH(Matrix(memory.data(), 2, 3, 2), "check failed");
}
#endif

}  // namespace
}  // namespace moe

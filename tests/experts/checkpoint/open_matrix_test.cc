#include "experts/checkpoint/open_matrix.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::vector<float> RowOf(const StoredMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  matrix.Read(row, 0, absl::MakeSpan(values));
  return values;
}

TEST(OpenMatrixTest, ReadsPlainMatricesOfEveryFloatType) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    SCOPED_TRACE(std::string(DTypeName(dtype)));
    const TestCheckpoint checkpoint(
        {FloatTensor("w.weight", dtype, {2, 3}, {1, -2, 3, 0.5F, 5, 6})});
    MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                             OpenMatrix(*checkpoint, "w.weight", 2, 3));
    EXPECT_THAT(RowOf(matrix, 0), ElementsAre(1, -2, 3));
    EXPECT_THAT(RowOf(matrix, 1), ElementsAre(0.5F, 5, 6));
    EXPECT_EQ(matrix.bytes(), 6 * DTypeBytes(dtype));
  }
}

TEST(OpenMatrixTest, TurnsWhatIsStoredInOut) {
  const TestCheckpoint checkpoint(
      {FloatTensor("c_fc.weight", DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6})});
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredMatrix matrix,
      OpenMatrix(*checkpoint, "c_fc.weight", 3, 2, StoredOrder::kInOut));
  EXPECT_EQ(matrix.rows, 3);
  EXPECT_THAT(RowOf(matrix, 2), ElementsAre(3, 6));
}

TEST(OpenMatrixTest, NamesWantedAndGot) {
  const TestCheckpoint checkpoint(
      {FloatTensor("w", DType::kF32, {2, 3}, std::vector<float>(6)),
       RawTensor<int32_t>("i", DType::kI32, {1, 1}, {1})});
  EXPECT_THAT(OpenMatrix(*checkpoint, "gone", 2, 3),
              StatusIs(kNotFound, HasSubstr("tensor \"gone\"")));
  EXPECT_THAT(OpenMatrix(*checkpoint, "w", 3, 2),
              StatusIs(kInvalid, HasSubstr("[3, 2], got F32 [2, 3]")));
  EXPECT_THAT(OpenMatrix(*checkpoint, "w", 2, 3, StoredOrder::kInOut),
              StatusIs(kInvalid, HasSubstr("[3, 2], got F32 [2, 3]")));
  EXPECT_THAT(OpenMatrix(*checkpoint, "i", 1, 1),
              StatusIs(kUnimplemented, HasSubstr("got I32 [1, 1]")));
}

TEST(ReadVectorTest, ReadsEveryFloatTypeAndForm) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const TestCheckpoint checkpoint(
        {FloatTensor("v", dtype, {3}, {1, -2, 0.5F}),
         FloatTensor("row", dtype, {1, 3}, {1, -2, 0.5F}),
         FloatTensor("column", dtype, {3, 1}, {1, -2, 0.5F})});
    for (const char* name : {"v", "row", "column"}) {
      SCOPED_TRACE(name);
      EXPECT_THAT(*ReadVector(*checkpoint, name, 3), ElementsAre(1, -2, 0.5F));
    }
  }
}

TEST(ReadVectorTest, NamesWantedAndGot) {
  const TestCheckpoint checkpoint(
      {FloatTensor("v", DType::kF32, {3}, {1, 2, 3}),
       FloatTensor("m", DType::kF32, {2, 2}, {1, 2, 3, 4}),
       RawTensor<uint8_t>("u", DType::kU8, {2}, {1, 2})});
  EXPECT_THAT(ReadVector(*checkpoint, "gone", 3),
              StatusIs(kNotFound, HasSubstr("\"gone\"")));
  EXPECT_THAT(ReadVector(*checkpoint, "v", 4),
              StatusIs(kInvalid, HasSubstr("[4], got F32 [3]")));
  EXPECT_THAT(ReadVector(*checkpoint, "m", 4),
              StatusIs(kInvalid, HasSubstr("got F32 [2, 2]")));
  EXPECT_THAT(ReadVector(*checkpoint, "u", 2),
              StatusIs(kUnimplemented, HasSubstr("got U8 [2]")));
}

}  // namespace
}  // namespace moe

#include "experts/checkpoint/open_matrix.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

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

TEST(OpenMatrixTest, RefusesExtentsBelowOne) {
  const TestCheckpoint checkpoint({FloatTensor("w", DType::kF32, {0, 3}, {})});
  EXPECT_THAT(OpenMatrix(*checkpoint, "w", 0, 3),
              StatusIs(kInvalid, HasSubstr("tensor \"w\": want extents >= 1, "
                                           "asked for [0, 3]")));
  EXPECT_THAT(OpenMatrix(*checkpoint, "w", -1, 3), StatusIs(kInvalid, _));
  EXPECT_THAT(OpenStack(*checkpoint, "w", 0, 2, 3),
              StatusIs(kInvalid, HasSubstr("asked for [0, 2, 3]")));
}

TEST(OpenMatrixTest, GivesBackItsPages) {
  const TestCheckpoint checkpoint(
      {FloatTensor("w.weight", DType::kF32, {2, 2}, {1, 2, 3, 4}),
       RawTensor<uint8_t>("f.weight", DType::kF8E4M3, {2, 2}, Bytes(4, 0x38)),
       FloatTensor("f.weight_scale", DType::kF32, {2}, {1, 2})});
  for (const char* name : {"w.weight", "f.weight"}) {
    MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                             OpenMatrix(*checkpoint, name, 2, 2));
    const std::vector<float> row = RowOf(matrix, 1);
    DropPages(*checkpoint, matrix);
    EXPECT_EQ(RowOf(matrix, 1), row);
  }
}

// F8_E4M3 [rows, cols] of ones beside a scale tensor.
std::vector<TestTensor> Fp8(std::vector<int64_t> shape, TestTensor scale,
                            absl::string_view name = "w.weight") {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  return {RawTensor<uint8_t>(name, DType::kF8E4M3, std::move(shape),
                             Bytes(size, 0x38)),
          std::move(scale)};
}

TEST(OpenFp8Test, ReadsBlocksWithRaggedEdges) {
  // 2 x 3 blocks of 128 x 128, the last ones partial.
  const TestCheckpoint checkpoint(
      Fp8({130, 257}, FloatTensor("w.weight_scale_inv", DType::kF32, {2, 3},
                                  {1, 2, 3, 4, 5, 6})));
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 130, 257));
  EXPECT_EQ(matrix.coding, StoredCoding::kScaled);
  const std::vector<float> first = RowOf(matrix, 127);
  EXPECT_EQ(first[0], 1);
  EXPECT_EQ(first[127], 1);
  EXPECT_EQ(first[128], 2);
  EXPECT_EQ(first[255], 2);
  EXPECT_EQ(first[256], 3);
  EXPECT_EQ(RowOf(matrix, 128)[0], 4);
  EXPECT_EQ(RowOf(matrix, 129)[256], 6);
  EXPECT_EQ(matrix.bytes(), 130 * 257 + 6 * 4);
}

TEST(OpenFp8Test, TakesTheBlockSizeOfTheConfig) {
  const TestCheckpoint checkpoint(
      Fp8({4, 4},
          FloatTensor("w.weight_scale_inv", DType::kF32, {2, 1}, {1, 2})),
      R"({"quantization_config": {"weight_block_size": [3, 4]}})");
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 4, 4));
  EXPECT_EQ(RowOf(matrix, 2)[3], 1);
  EXPECT_EQ(RowOf(matrix, 3)[0], 2);
}

struct ScaleCase {
  std::string name;
  std::string tensor;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;  // powers of two
  // Expected at (0, 0), (0, 3), (2, 0).
  std::vector<float> want;
};

void PrintTo(const ScaleCase& scale, std::ostream* out) { *out << scale.name; }

class Fp8ScaleTest : public ::testing::TestWithParam<ScaleCase> {};

TEST_P(Fp8ScaleTest, IsDecidedByItsShape) {
  const ScaleCase& param = GetParam();
  TestTensor scale;
  if (param.dtype == DType::kF8E8M0) {
    Bytes exponents;
    for (const float value : param.values) {
      exponents.push_back(static_cast<uint8_t>(std::ilogb(value) + 127));
    }
    scale = RawTensor(param.tensor, param.dtype, param.shape, exponents);
  } else {
    scale = FloatTensor(param.tensor, param.dtype, param.shape, param.values);
  }
  const TestCheckpoint checkpoint(Fp8({3, 4}, scale));
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 3, 4));
  EXPECT_EQ(RowOf(matrix, 0)[0], param.want[0]);
  EXPECT_EQ(RowOf(matrix, 0)[3], param.want[1]);
  EXPECT_EQ(RowOf(matrix, 2)[0], param.want[2]);
}

INSTANTIATE_TEST_SUITE_P(
    All, Fp8ScaleTest,
    ::testing::Values(
        ScaleCase{"Scalar", "w.weight_scale", DType::kF32, {}, {4}, {4, 4, 4}},
        ScaleCase{"One", "w.weight_scale", DType::kBF16, {1}, {4}, {4, 4, 4}},
        ScaleCase{"OneBlock",
                  "w.weight_scale_inv",
                  DType::kF32,
                  {1, 1},
                  {4},
                  {4, 4, 4}},
        ScaleCase{
            "Rows", "w.weight_scale", DType::kF16, {3}, {1, 2, 4}, {1, 1, 4}},
        ScaleCase{"RowsByOne",
                  "w.weight_scale",
                  DType::kF32,
                  {3, 1},
                  {1, 2, 4},
                  {1, 1, 4}},
        ScaleCase{"Columns",
                  "w.weight_scale",
                  DType::kF32,
                  {1, 4},
                  {1, 2, 4, 8},
                  {1, 8, 1}},
        ScaleCase{"Groups",
                  "w.weight_scale",
                  DType::kF32,
                  {3, 2},
                  {1, 2, 4, 8, 16, 32},
                  {1, 2, 16}},
        ScaleCase{"PowersOfTwo",
                  "w.scale",
                  DType::kF8E8M0,
                  {3},
                  {0.5F, 1, 2},
                  {0.5F, 0.5F, 2}}),
    [](const ::testing::TestParamInfo<ScaleCase>& param) {
      return param.param.name;
    });

TEST(OpenFp8Test, ReadsWhatIsStoredInOut) {
  // Stored [in = 2, out = 3], a scale per stored row.
  const TestCheckpoint checkpoint(
      Fp8({2, 3}, FloatTensor("w.weight_scale", DType::kF32, {2, 1}, {1, 2})));
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredMatrix matrix,
      OpenMatrix(*checkpoint, "w.weight", 3, 2, StoredOrder::kInOut));
  EXPECT_THAT(RowOf(matrix, 2), ElementsAre(1, 2));
}

TEST(OpenFp8Test, NamesWhatDoesNotFit) {
  const TestCheckpoint bare(
      {RawTensor<uint8_t>("w.weight", DType::kF8E4M3, {2, 2}, Bytes(4))});
  EXPECT_THAT(OpenMatrix(*bare, "w.weight", 2, 2),
              StatusIs(kNotFound,
                       HasSubstr("tensor \"w.weight\": is F8_E4M3, but neither "
                                 "\"w.weight_scale_inv\" nor "
                                 "\"w.weight_scale\" is there")));
  const TestCheckpoint shape(
      Fp8({3, 4}, FloatTensor("w.weight_scale", DType::kF32, {3, 3},
                              std::vector<float>(9))));
  EXPECT_THAT(
      OpenMatrix(*shape, "w.weight", 3, 4),
      StatusIs(kInvalid, HasSubstr("tensor \"w.weight_scale\": want one scale, "
                                   "[3], [3, 1], [1, 4], [3, ?] with equal "
                                   "groups, or [1, 1], got F32 [3, 3]")));
  const TestCheckpoint rank(
      Fp8({3, 4}, FloatTensor("w.weight_scale", DType::kF32, {3, 1, 2},
                              std::vector<float>(6))));
  EXPECT_THAT(OpenMatrix(*rank, "w.weight", 3, 4),
              StatusIs(kInvalid, HasSubstr("got F32 [3, 1, 2]")));
  const TestCheckpoint dtype(
      Fp8({3, 4}, RawTensor<uint8_t>("w.weight_scale", DType::kU8, {1}, {1})));
  EXPECT_THAT(OpenMatrix(*dtype, "w.weight", 3, 4),
              StatusIs(kUnimplemented, HasSubstr("got U8 [1]")));
  const TestCheckpoint weight(
      Fp8({3, 4}, FloatTensor("w.weight_scale", DType::kF32, {1}, {1})));
  EXPECT_THAT(
      OpenMatrix(*weight, "w.weight", 4, 3),
      StatusIs(kInvalid, HasSubstr("want F8_E4M3 [4, 3], got F8_E4M3 [3, 4]")));
}

// Codes 0 ... 15 over and over, two per byte.
Bytes Nibbles(int64_t count) {
  Bytes bytes;
  for (int64_t i = 0; i < count; i += 2) {
    bytes.push_back(static_cast<uint8_t>(i % 16 + (i + 1) % 16 * 16));
  }
  return bytes;
}

TEST(OpenMxfp4Test, ReadsBlocksAndScales) {
  for (const std::string separator : {"_", "."}) {
    SCOPED_TRACE(separator);
    const TestCheckpoint checkpoint(
        {RawTensor("w" + separator + "blocks", DType::kU8, {2, 2, 16},
                   Nibbles(128)),
         RawTensor<uint8_t>("w" + separator + "scales", DType::kU8, {2, 2},
                            {127, 128, 129, 130})});
    MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                             OpenMatrix(*checkpoint, "w", 2, 64));
    EXPECT_EQ(matrix.coding, StoredCoding::kMxfp4);
    EXPECT_EQ(RowOf(matrix, 0)[1], 0.5F);
    EXPECT_EQ(RowOf(matrix, 0)[33], 1.0F);
    EXPECT_EQ(RowOf(matrix, 1)[7], 24.0F);
    EXPECT_EQ(RowOf(matrix, 1)[63], -48.0F);
    EXPECT_EQ(matrix.bytes(), 64 + 4);
  }
}

TEST(OpenMxfp4Test, ReadsPackedBytes) {
  for (const DType dtype : {DType::kI8, DType::kU8}) {
    const TestCheckpoint checkpoint(
        {RawTensor("w.weight", dtype, {2, 16}, Nibbles(64)),
         RawTensor<uint8_t>("w.scale", DType::kF8E8M0, {2, 1}, {127, 128})});
    MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                             OpenMatrix(*checkpoint, "w.weight", 2, 32));
    EXPECT_EQ(RowOf(matrix, 0)[7], 6.0F);
    EXPECT_EQ(RowOf(matrix, 1)[31], -12.0F);
  }
}

TEST(OpenMxfp4Test, NamesWhatDoesNotFit) {
  const TestCheckpoint no_scales(
      {RawTensor("w_blocks", DType::kU8, {2, 1, 16}, Nibbles(64))});
  EXPECT_THAT(OpenMatrix(*no_scales, "w", 2, 32),
              StatusIs(kNotFound, HasSubstr("tensor \"w_scales\"")));
  const TestCheckpoint shapes(
      {RawTensor("w_blocks", DType::kU8, {2, 1, 16}, Nibbles(64)),
       RawTensor<uint8_t>("w_scales", DType::kU8, {1}, {1})});
  EXPECT_THAT(OpenMatrix(*shapes, "w", 2, 64),
              StatusIs(kInvalid, HasSubstr("\"w_blocks\": want U8 [2, 2, 16], "
                                           "got U8 [2, 1, 16]")));
  EXPECT_THAT(OpenMatrix(*shapes, "w", 2, 32),
              StatusIs(kInvalid, HasSubstr("\"w_scales\": want U8 [2, 1]")));
  const TestCheckpoint bytes(
      {RawTensor("a.weight", DType::kI8, {2, 16}, Nibbles(64)),
       RawTensor("b.weight", DType::kI8, {2, 16}, Nibbles(64)),
       RawTensor<uint8_t>("b.scale", DType::kF8E8M0, {2, 1}, {1, 1}),
       RawTensor("nvfp4.weight", DType::kU8, {2, 16}, Nibbles(64)),
       RawTensor<uint8_t>("nvfp4.weight_scale", DType::kF8E4M3, {2, 2},
                          Bytes(4))});
  EXPECT_THAT(
      OpenMatrix(*bytes, "a.weight", 2, 32),
      StatusIs(kUnimplemented, HasSubstr("tensor \"a.weight\": I8 without a "
                                         "scale tensor is not supported")));
  EXPECT_THAT(OpenMatrix(*bytes, "b.weight", 2, 16),
              StatusIs(kInvalid, HasSubstr("[2, 8], got I8 [2, 16]")));
  EXPECT_THAT(
      OpenMatrix(*bytes, "nvfp4.weight", 2, 32),
      StatusIs(kUnimplemented,
               HasSubstr("\"nvfp4.weight_scale\": want F8_E8M0 [2, 1], got "
                         "F8_E4M3 [2, 2]")));
}

// int4 of compressed-tensors: [2, 16] with two groups, row 0 counting up from
// -8, row 1 all 7.
std::vector<TestTensor> Packed() {
  return {RawTensor<uint32_t>("w.weight_packed", DType::kI32, {2, 2},
                              {0x76543210, 0xfedcba98, 0xffffffff, 0xffffffff}),
          FloatTensor("w.weight_scale", DType::kBF16, {2, 2}, {1, 2, 0.5F, 4}),
          RawTensor<int64_t>("w.weight_shape", DType::kI64, {2}, {2, 16})};
}

TEST(OpenInt4PackedTest, ReadsGroups) {
  const TestCheckpoint checkpoint(Packed());
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 2, 16));
  EXPECT_EQ(matrix.coding, StoredCoding::kInt4);
  EXPECT_THAT(RowOf(matrix, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0,
                                            2, 4, 6, 8, 10, 12, 14));
  EXPECT_EQ(RowOf(matrix, 1)[7], 3.5F);
  EXPECT_EQ(RowOf(matrix, 1)[8], 28.0F);
  EXPECT_EQ(matrix.bytes(), 16 + 8);
}

TEST(OpenInt4PackedTest, ReadsRowsThatEndWithinAWord) {
  std::vector<TestTensor> tensors = Packed();
  tensors[1] = FloatTensor("w.weight_scale", DType::kF16, {2, 1}, {1, 2});
  tensors[2] = RawTensor<int32_t>("w.weight_shape", DType::kI32, {2}, {2, 11});
  const TestCheckpoint checkpoint(tensors);
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 2, 11));
  EXPECT_EQ(RowOf(matrix, 0)[10], 2.0F);
  EXPECT_EQ(RowOf(matrix, 1)[0], 14.0F);
}

TEST(OpenInt4PackedTest, NamesWhatDoesNotFit) {
  const auto open = [](size_t index, TestTensor tensor, int64_t cols = 16) {
    std::vector<TestTensor> tensors = Packed();
    if (index < tensors.size()) {
      tensors[index] = std::move(tensor);
    } else {
      tensors.push_back(std::move(tensor));
    }
    const TestCheckpoint checkpoint(tensors);
    return OpenMatrix(*checkpoint, "w.weight", 2, cols).status();
  };
  EXPECT_THAT(
      open(0, RawTensor<uint8_t>("w.weight_packed", DType::kU8, {2, 8},
                                 Bytes(16))),
      StatusIs(kUnimplemented, HasSubstr("want I32 [2, 2], got U8 [2, 8]")));
  EXPECT_THAT(open(0, RawTensor<int32_t>("w.weight_packed", DType::kI32, {2, 3},
                                         std::vector<int32_t>(6))),
              StatusIs(kInvalid, HasSubstr("want I32 [2, 2], got I32 [2, 3]")));
  EXPECT_THAT(open(0, RawTensor<int32_t>("w.weight_packed", DType::kI32, {2, 4},
                                         std::vector<int32_t>(8))),
              StatusIs(kUnimplemented,
                       HasSubstr("compressed-tensors with 8 bits is not")));
  EXPECT_THAT(open(1, FloatTensor("other", DType::kF32, {1}, {1})),
              StatusIs(kNotFound, HasSubstr("\"w.weight_scale\"")));
  EXPECT_THAT(open(1, FloatTensor("w.weight_scale", DType::kF32, {2, 3},
                                  std::vector<float>(6))),
              StatusIs(kInvalid,
                       HasSubstr("want groups that divide 16 columns, got F32 "
                                 "[2, 3]")));
  EXPECT_THAT(open(1, FloatTensor("w.weight_scale", DType::kF32, {2, 0}, {})),
              StatusIs(kInvalid, HasSubstr("want groups")));
  EXPECT_THAT(
      open(2, RawTensor<int64_t>("w.weight_shape", DType::kI64, {2}, {2, 15})),
      StatusIs(kInvalid, HasSubstr("\"w.weight_shape\": want [2, 16], "
                                   "got [2, 15]")));
  EXPECT_THAT(
      open(3, RawTensor<int32_t>("w.weight_zero_point", DType::kI32, {2, 2},
                                 {0, 0, 0, 0})),
      StatusIs(kInvalid, HasSubstr("model.safetensors: tensor "
                                   "\"w.weight_zero_point\": want I32 [1, 2], "
                                   "got I32 [2, 2]")));
  EXPECT_THAT(
      open(3, RawTensor<uint8_t>("w.weight_zero_point", DType::kI8, {2, 2},
                                 Bytes(4))),
      StatusIs(kUnimplemented, HasSubstr("want I32 [1, 2], got I8 [2, 2]")));
  std::vector<int32_t> order(16, 0);
  EXPECT_THAT(
      open(3, RawTensor("w.weight_g_idx", DType::kI32, {16}, order)),
      StatusIs(kUnimplemented, HasSubstr("activation order (desc_act)")));
}

// GPTQ [out = 8, in = 16] with two groups: word (k, n) holds columns 8k ... of
// row n. Row 0 counts up from -8, the others are zero.
std::vector<TestTensor> Gptq(uint32_t zeros = 0x77777777) {
  std::vector<uint32_t> words(16, 0x88888888);
  words[0] = 0x76543210;
  words[8] = 0xfedcba98;
  std::vector<float> scales(16, 1);
  scales[8] = 2;
  std::vector<int32_t> order(16);
  for (int32_t i = 0; i < 16; ++i) order[static_cast<size_t>(i)] = i / 8;
  return {RawTensor("w.qweight", DType::kI32, {2, 8}, words),
          FloatTensor("w.scales", DType::kF16, {2, 8}, scales),
          RawTensor<uint32_t>("w.qzeros", DType::kI32, {2, 1}, {zeros, zeros}),
          RawTensor("w.g_idx", DType::kI32, {16}, order)};
}

TEST(OpenGptqTest, ReadsGroups) {
  const TestCheckpoint checkpoint(Gptq());
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 8, 16));
  EXPECT_EQ(matrix.coding, StoredCoding::kInt4);
  EXPECT_FALSE(matrix.has_zero_points());
  EXPECT_THAT(RowOf(matrix, 0), ElementsAre(-8, -7, -6, -5, -4, -3, -2, -1, 0,
                                            2, 4, 6, 8, 10, 12, 14));
  EXPECT_EQ(RowOf(matrix, 7), std::vector<float>(16, 0));
  EXPECT_EQ(matrix.bytes(), 64 + 32);
}

TEST(OpenGptqTest, TheOrderOfTheGroupsMayBeLeftOut) {
  std::vector<TestTensor> tensors = Gptq();
  tensors.pop_back();
  const TestCheckpoint checkpoint(tensors);
  MOE_EXPECT_OK(OpenMatrix(*checkpoint, "w.weight", 8, 16));
}

struct ZeroFormat {
  std::string name;
  std::string section;  // of quantization_config
  // The zero point that nibble 7 stands for; 0: refused but for 8.
  int seven;
};

void PrintTo(const ZeroFormat& format, std::ostream* out) {
  *out << format.name;
}

class GptqFormatTest : public ::testing::TestWithParam<ZeroFormat> {};

TEST_P(GptqFormatTest, SaysHowZeroPointsAreStored) {
  const ZeroFormat& format = GetParam();
  const std::string config =
      R"({"quantization_config": {)" + format.section + "}}";
  const TestCheckpoint sevens(Gptq(0x77777777), config);
  const TestCheckpoint others(Gptq(0x98786777), config);
  if (format.seven == 0) {
    // All alike, they can only be the middle.
    MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                             OpenMatrix(*sevens, "w.weight", 8, 16));
    EXPECT_FALSE(matrix.has_zero_points());
    EXPECT_THAT(OpenMatrix(*others, "w.weight", 8, 16),
                StatusIs(kUnimplemented,
                         HasSubstr("model.safetensors: tensor \"w.qzeros\": "
                                   "GPTQ with zero points in the format \"")));
    return;
  }
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix same,
                           OpenMatrix(*sevens, "w.weight", 8, 16));
  EXPECT_EQ(same.has_zero_points(), format.seven != 8);
  EXPECT_EQ(same.ZeroPoint(3, 9), format.seven);
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*others, "w.weight", 8, 16));
  EXPECT_TRUE(matrix.has_zero_points());
  const std::array<int, 8> nibbles = {7, 7, 7, 6, 8, 7, 8, 9};
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(matrix.ZeroPoint(row, 0),
              nibbles[static_cast<size_t>(row)] + format.seven - 7);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GptqFormatTest,
    ::testing::Values(
        ZeroFormat{"None", "", 8},
        ZeroFormat{"Method", R"("quant_method": "gptq")", 8},
        ZeroFormat{"First", R"("checkpoint_format": "gptq")", 8},
        ZeroFormat{"Second", R"("checkpoint_format": "gptq_v2")", 7},
        ZeroFormat{"Another", R"("checkpoint_format": "marlin")", 0},
        ZeroFormat{"AutoRoundAsFirst",
                   R"("quant_method": "auto-round",
                      "packing_format": "auto_round:auto_gptq")",
                   8},
        ZeroFormat{"AutoRound",
                   R"("quant_method": "auto-round",
                      "packing_format": "auto_round")",
                   7},
        ZeroFormat{"AutoRoundAsSecond",
                   R"("quant_method": "auto-round",
                      "packing_format": "auto_round:gptqmodel")",
                   7},
        ZeroFormat{"AnotherMethod", R"("quant_method": "auto-round")", 0}),
    [](const auto& test) { return test.param.name; });

TEST(OpenGptqTest, AZeroPointOfZeroBorrowsFromTheNextNibble) {
  // 8, 8, 8, 0, 8, 8, 8, 0 less one each, as one number.
  const TestCheckpoint checkpoint(Gptq(0x08880888U - 0x11111111U));
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*checkpoint, "w.weight", 8, 16));
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(matrix.ZeroPoint(row, 0), row % 4 == 3 ? 0 : 8) << row;
  }
}

TEST(OpenGptqTest, TheGroupSizeOfTheConfigCounts) {
  const TestCheckpoint right(Gptq(),
                             R"({"quantization_config": {"group_size": 8}})");
  MOE_EXPECT_OK(OpenMatrix(*right, "w.weight", 8, 16));
  const TestCheckpoint wrong(Gptq(),
                             R"({"quantization_config": {"group_size": 4}})");
  EXPECT_THAT(OpenMatrix(*wrong, "w.weight", 8, 16),
              StatusIs(kInvalid, HasSubstr("\"w.scales\": want groups of 4 for "
                                           "16 columns, got F16 [2, 8]")));
  // 16 columns in groups of 12: the last one is shorter.
  std::vector<TestTensor> ragged = Gptq();
  ragged.pop_back();
  const TestCheckpoint partial(
      ragged, R"({"quantization_config": {"group_size": 12}})");
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                           OpenMatrix(*partial, "w.weight", 8, 16));
  EXPECT_EQ(RowOf(matrix, 0)[11], 3.0F);
  EXPECT_EQ(RowOf(matrix, 0)[12], 8.0F);
}

TEST(OpenGptqTest, NamesWhatIsNotSupported) {
  const auto open = [](size_t index, TestTensor tensor) {
    std::vector<TestTensor> tensors = Gptq();
    tensors[index] = std::move(tensor);
    const TestCheckpoint checkpoint(tensors);
    return OpenMatrix(*checkpoint, "w.weight", 8, 16).status();
  };
  const auto words = [](std::vector<int64_t> shape) {
    return RawTensor<int32_t>(
        "w.qweight", DType::kI32, shape,
        std::vector<int32_t>(static_cast<size_t>(shape[0] * shape[1])));
  };
  for (const auto& [height, bits] :
       std::vector<std::pair<int64_t, std::string>>{{1, "2"}, {4, "8"}}) {
    EXPECT_THAT(
        open(0, words({height, 8})),
        StatusIs(kUnimplemented, HasSubstr("tensor \"w.qweight\": GPTQ with " +
                                           bits + " bits is not supported")));
  }
  EXPECT_THAT(open(0, words({3, 8})),
              StatusIs(kInvalid, HasSubstr("want I32 [2, 8], got I32 [3, 8]")));
  EXPECT_THAT(
      open(3, RawTensor<int32_t>("w.g_idx", DType::kI32, {16},
                                 std::vector<int32_t>(16, 1))),
      StatusIs(kUnimplemented, HasSubstr("tensor \"w.g_idx\": activation order "
                                         "(desc_act) is not supported")));
  EXPECT_THAT(open(1, FloatTensor("w.scales", DType::kF16, {3, 8},
                                  std::vector<float>(24))),
              StatusIs(kInvalid, HasSubstr("want groups of equal size")));
  EXPECT_THAT(open(1, FloatTensor("w.scales", DType::kF16, {0, 8}, {})),
              StatusIs(kInvalid, HasSubstr("want groups of equal size")));
  EXPECT_THAT(open(1, FloatTensor("other", DType::kF16, {1}, {1})),
              StatusIs(kNotFound, HasSubstr("\"w.scales\"")));
  EXPECT_THAT(open(2, FloatTensor("other", DType::kF16, {1}, {1})),
              StatusIs(kNotFound, HasSubstr("\"w.qzeros\"")));
}

// 4-bit integers with zero points in each of the formats, every nibble put in
// its place one by one.
struct Int4Case {
  std::string name;
  std::string format;  // "packed", "gptq", "gptq_v2", "awq"
  int64_t rows;
  int64_t cols;
  int64_t group;
  std::string section = {};  // of quantization_config, without group_size
};

void PrintTo(const Int4Case& param, std::ostream* out) { *out << param.name; }

class OpenInt4Test : public ::testing::TestWithParam<Int4Case> {
 protected:
  static constexpr std::array<int, 8> kInOrder = {0, 1, 2, 3, 4, 5, 6, 7};
  static constexpr std::array<int, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

  int64_t groups() const {
    return (GetParam().cols + GetParam().group - 1) / GetParam().group;
  }
  static int Code(int64_t row, int64_t col) {
    return static_cast<int>((row * 7 + col * 5 + row * col / 3) % 16);
  }
  int Zero(int64_t row, int64_t col) const {
    const auto zero =
        static_cast<int>((row * 5 + col / GetParam().group * 3) % 16);
    return symmetric_ ? 8 : zero;
  }
  static float Scale(int64_t row, int64_t group) {  // exact in f16
    return 0.25F + static_cast<float>(row + 100 * group) / 8;
  }

  // Eight values to a word along the rows or the columns of [rows, cols];
  // transposed: stored [cols, rows].
  template <typename Value>
  static TestTensor Words(const std::string& name, int64_t rows, int64_t cols,
                          bool along_rows, bool transposed,
                          const std::array<int, 8>& order, Value value) {
    const int64_t height = along_rows ? (rows + 7) / 8 : rows;
    const int64_t width = along_rows ? cols : (cols + 7) / 8;
    std::vector<uint32_t> words(static_cast<size_t>(height * width));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t y = along_rows ? r / 8 : r;
        const int64_t x = along_rows ? c : c / 8;
        words[static_cast<size_t>(transposed ? x * height + y
                                             : y * width + x)] |=
            static_cast<uint32_t>(value(r, c))
            << (4 * order[static_cast<size_t>((along_rows ? r : c) % 8)]);
      }
    }
    return RawTensor(name, DType::kI32,
                     transposed ? std::vector<int64_t>{width, height}
                                : std::vector<int64_t>{height, width},
                     words);
  }

  std::vector<TestTensor> Tensors() const {
    const auto& [name, format, rows, cols, group, section] = GetParam();
    const bool packed = format == "packed";
    const bool awq = format == "awq";
    const auto zero = [&](int64_t r, int64_t g) { return Zero(r, g * group); };
    TestTensor data =
        Words(packed ? "w.weight_packed" : "w.qweight", rows, cols,
              /*along_rows=*/awq, /*transposed=*/!packed,
              awq ? kAwqOrder : kInOrder, Code);
    TestTensor zeros =
        Words(packed ? "w.weight_zero_point" : "w.qzeros", rows, groups(),
              /*along_rows=*/true, /*transposed=*/!packed,
              awq ? kAwqOrder : kInOrder, zero);
    if (format == "gptq") {
      for (size_t i = 0; i < zeros.bytes.size(); i += 4) {
        const uint32_t word =
            LoadUnaligned<uint32_t>(zeros.bytes.data() + i) - 0x11111111U;
        std::memcpy(zeros.bytes.data() + i, &word, 4);
      }
    }
    std::vector<float> scales;
    const int64_t outer = packed ? rows : groups();
    const int64_t inner = packed ? groups() : rows;
    for (int64_t i = 0; i < outer; ++i) {
      for (int64_t j = 0; j < inner; ++j) {
        scales.push_back(packed ? Scale(i, j) : Scale(j, i));
      }
    }
    return {std::move(data), std::move(zeros),
            FloatTensor(packed ? "w.weight_scale" : "w.scales", DType::kF16,
                        {outer, inner}, scales)};
  }

  std::string Config() const {
    std::string section = GetParam().section;
    if (!section.empty()) section += ", ";
    return absl::StrCat(R"({"quantization_config": {)", section,
                        R"("group_size": )", GetParam().group, "}}");
  }

  // Holds the matrix to (code - zero) * scale.
  void Check(const StoredMatrix& matrix) const {
    const auto& param = GetParam();
    std::vector<float> block(static_cast<size_t>(param.rows * param.cols));
    matrix.ReadBlock(0, 0, Matrix(block.data(), param.rows, param.cols));
    for (int64_t r = 0; r < param.rows; ++r) {
      const std::vector<float> row = RowOf(matrix, r);
      for (int64_t c = 0; c < param.cols; ++c) {
        const double want = (Code(r, c) - Zero(r, c)) *
                            static_cast<double>(Scale(r, c / param.group));
        ASSERT_EQ(row[static_cast<size_t>(c)], static_cast<float>(want))
            << r << ", " << c;
        ASSERT_EQ(block[static_cast<size_t>(r * param.cols + c)],
                  static_cast<float>(want));
        ASSERT_EQ(matrix.ZeroPoint(r, c), Zero(r, c)) << r << ", " << c;
      }
    }
  }

  bool symmetric_ = false;
};

TEST_P(OpenInt4Test, ReadsZeroPoints) {
  const TestCheckpoint checkpoint(Tensors(), Config());
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredMatrix matrix,
      OpenMatrix(*checkpoint, "w.weight", GetParam().rows, GetParam().cols));
  EXPECT_EQ(matrix.coding, StoredCoding::kInt4);
  EXPECT_TRUE(matrix.has_zero_points());
  Check(matrix);
  const int64_t elements = GetParam().rows * GetParam().cols;
  const int64_t scales = GetParam().rows * groups();
  EXPECT_EQ(matrix.bytes(), elements / 2 + scales * 2 + (scales + 1) / 2);
  DropPages(*checkpoint, matrix);
  Check(matrix);
}

TEST_P(OpenInt4Test, ZeroPointsInTheMiddleAreNone) {
  symmetric_ = true;
  const TestCheckpoint checkpoint(Tensors(), Config());
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredMatrix matrix,
      OpenMatrix(*checkpoint, "w.weight", GetParam().rows, GetParam().cols));
  EXPECT_FALSE(matrix.has_zero_points());
  Check(matrix);
}

TEST_P(OpenInt4Test, NamesATensorOfAnotherShape) {
  for (size_t i = 0; i < 3; ++i) {
    std::vector<TestTensor> tensors = Tensors();
    TestTensor& wrong = tensors[i];
    wrong.shape.insert(wrong.shape.begin(), 1);
    SCOPED_TRACE(wrong.name);
    const TestCheckpoint checkpoint(tensors, Config());
    EXPECT_THAT(
        OpenMatrix(*checkpoint, "w.weight", GetParam().rows, GetParam().cols),
        StatusIs(kInvalid,
                 AllOf(HasSubstr("model.safetensors: tensor \"" + wrong.name +
                                 "\": want"),
                       HasSubstr(i == 2 ? "got F16 [1, " : "got I32 [1, "))));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OpenInt4Test,
    ::testing::Values(Int4Case{"Packed", "packed", 16, 64, 32},
                      Int4Case{"PackedOddRowsAndColumns", "packed", 13, 22, 11},
                      Int4Case{"PackedOneGroup", "packed", 9, 24, 24},
                      Int4Case{"Gptq", "gptq", 16, 64, 32},
                      Int4Case{"GptqShorterLastGroup", "gptq", 13, 44, 32,
                               R"("quant_method": "gptq")"},
                      Int4Case{"GptqOneColumn", "gptq", 24, 1, 1},
                      Int4Case{"GptqSecondFormat", "gptq_v2", 13, 44, 16,
                               R"("checkpoint_format": "gptq_v2")"},
                      Int4Case{"Awq", "awq", 16, 64, 32,
                               R"("quant_method": "awq", "version": "gemm")"},
                      Int4Case{"AwqByItsShape", "awq", 24, 40, 8},
                      Int4Case{"AwqUpperCase", "awq", 8, 8, 8,
                               R"("quant_method": "awq", "version": "GEMM")"},
                      Int4Case{"AwqManyColumns", "awq", 40, 300, 128,
                               R"("quant_method": "awq")"},
                      Int4Case{"AwqOfAutoRound", "awq", 16, 64, 64,
                               R"("quant_method": "auto-round",
                    "packing_format": "auto_round:auto_awq")"}),
    [](const auto& test) { return test.param.name; });

TEST(OpenAwqTest, NamesWhatIsNotSupported) {
  const auto open = [](std::vector<int64_t> shape, const std::string& version) {
    const auto count = static_cast<size_t>(shape[0] * shape[1]);
    const TestCheckpoint checkpoint(
        {RawTensor("w.qweight", DType::kI32, std::move(shape),
                   std::vector<int32_t>(count))},
        R"({"quantization_config": {"quant_method": "awq", "version": ")" +
            version + R"("}})");
    return OpenMatrix(*checkpoint, "w.weight", 16, 16).status();
  };
  // Square: a shape that other versions have, too.
  for (const char* version : {"gemv", "gemv_fast", "marlin"}) {
    EXPECT_THAT(
        open({16, 2}, version),
        StatusIs(kUnimplemented,
                 HasSubstr(absl::StrCat("tensor \"w.qweight\": AWQ of version "
                                        "\"",
                                        version, "\" is not supported"))));
  }
  EXPECT_THAT(
      open({16, 4}, "gemm"),
      StatusIs(kUnimplemented, HasSubstr("AWQ with 8 bits is not supported")));
  EXPECT_THAT(
      open({2, 16}, "gemm"),
      StatusIs(kInvalid, HasSubstr("want I32 [16, 2], got I32 [2, 16]")));
  EXPECT_THAT(open({16, 2}, "gemm"),
              StatusIs(kNotFound, HasSubstr("tensor \"w.scales\"")));
}

// [experts = 2, a = 4, b = 3] with the value 100 * e + 10 * a + b.
std::vector<float> StackValues() {
  std::vector<float> values;
  for (int e = 0; e < 2; ++e) {
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 3; ++b) {
        values.push_back(static_cast<float>(100 * e + 10 * a + b));
      }
    }
  }
  return values;
}

TEST(OpenStackTest, ReadsExpertsAndTheirHalves) {
  const TestCheckpoint checkpoint(
      {FloatTensor("gate_up_proj", DType::kBF16, {2, 4, 3}, StackValues())});
  MOE_ASSERT_OK_AND_ASSIGN(const StoredStack stack,
                           OpenStack(*checkpoint, "gate_up_proj", 2, 4, 3));
  EXPECT_EQ(stack.count, 2);
  EXPECT_THAT(RowOf(stack[0], 1), ElementsAre(10, 11, 12));
  EXPECT_THAT(RowOf(stack[1], 3), ElementsAre(130, 131, 132));
  EXPECT_THAT(RowOf(stack[1].Rows(2, 2), 0), ElementsAre(120, 121, 122));
  EXPECT_THAT(RowOf(stack[1].Rows(1, 2, 2), 1), ElementsAre(130, 131, 132));
  EXPECT_EQ(stack[1].bytes(), 24);
  EXPECT_DEATH(stack[2], "check failed");
}

TEST(OpenStackTest, ReadsExpertsStoredInOut) {
  // [experts, in = 4, out = 3]
  const TestCheckpoint checkpoint(
      {FloatTensor("w", DType::kF32, {2, 4, 3}, StackValues())});
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredStack stack,
      OpenStack(*checkpoint, "w", 2, 3, 4, StoredOrder::kInOut));
  EXPECT_THAT(RowOf(stack[1], 2), ElementsAre(102, 112, 122, 132));
  EXPECT_THAT(RowOf(stack[1].Rows(0, 2, 2), 1),
              ElementsAre(102, 112, 122, 132));
}

TEST(OpenStackTest, ReadsMxfp4Experts) {
  // Experts of [4, 32]: two gate rows and two up rows, interleaved.
  const TestCheckpoint checkpoint(
      {RawTensor("w_blocks", DType::kU8, {2, 4, 1, 16}, Nibbles(256)),
       RawTensor<uint8_t>("w_scales", DType::kU8, {2, 4, 1},
                          {127, 128, 129, 130, 131, 132, 133, 134})});
  // The order of the bf16 file is not asked.
  MOE_ASSERT_OK_AND_ASSIGN(
      const StoredStack stack,
      OpenStack(*checkpoint, "w", 2, 4, 32, StoredOrder::kInOut));
  EXPECT_EQ(RowOf(stack[0], 3)[2], 8.0F);
  const StoredMatrix up = stack[1].Rows(1, 2, 2);
  EXPECT_EQ(RowOf(up, 0)[2], 32.0F);
  EXPECT_EQ(RowOf(up, 1)[2], 128.0F);
}

TEST(OpenStackTest, ReadsFp8ExpertsWithScalesOfTheirOwn) {
  struct Case {
    std::vector<int64_t> shape;
    std::vector<float> values;
    float want[2];  // of expert 0 and 1, at row 2, column 1
  };
  const Case cases[] = {
      {{2}, {1, 2}, {1, 2}},
      {{2, 1, 1}, {1, 2}, {1, 2}},
      {{2, 4}, {1, 2, 4, 8, 16, 32, 64, 128}, {4, 64}},
      {{2, 4, 1}, {1, 2, 4, 8, 16, 32, 64, 128}, {4, 64}},
      {{2, 1, 3}, {1, 2, 4, 8, 16, 32}, {2, 16}},
      {{1}, {4}, {4, 4}},
      {{}, {4}, {4, 4}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(::testing::PrintToString(test.shape));
    const TestCheckpoint checkpoint(Fp8(
        {2, 4, 3},
        FloatTensor("w_scale_inv", DType::kF32, test.shape, test.values), "w"));
    MOE_ASSERT_OK_AND_ASSIGN(const StoredStack stack,
                             OpenStack(*checkpoint, "w", 2, 4, 3));
    EXPECT_EQ(RowOf(stack[0], 2)[1], test.want[0]);
    EXPECT_EQ(RowOf(stack[1], 2)[1], test.want[1]);
  }
}

TEST(OpenStackTest, CountsFp8BlocksFromTheOriginOfEachExpert) {
  const TestCheckpoint checkpoint(
      Fp8({2, 5, 3},
          FloatTensor("w_scale_inv", DType::kF32, {2, 3, 2},
                      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
          "w"),
      R"({"quantization_config": {"weight_block_size": [2, 2]}})");
  MOE_ASSERT_OK_AND_ASSIGN(const StoredStack stack,
                           OpenStack(*checkpoint, "w", 2, 5, 3));
  EXPECT_THAT(RowOf(stack[0], 4), ElementsAre(5, 5, 6));
  EXPECT_THAT(RowOf(stack[1].Rows(1, 2), 0), ElementsAre(7, 7, 8));
  EXPECT_THAT(RowOf(stack[1].Rows(1, 2), 1), ElementsAre(9, 9, 10));
}

TEST(OpenStackTest, NamesWhatDoesNotFit) {
  std::vector<TestTensor> tensors =
      Fp8({2, 4, 3}, FloatTensor("w_scale", DType::kF32, {4, 1}, {1, 2, 3, 4}),
          "w");
  for (TestTensor& tensor : Packed()) tensors.push_back(std::move(tensor));
  tensors.push_back(
      FloatTensor("plain", DType::kF32, {2, 4, 3}, std::vector<float>(24)));
  const TestCheckpoint checkpoint(tensors);
  EXPECT_THAT(OpenStack(*checkpoint, "plain", 3, 4, 3),
              StatusIs(kInvalid, HasSubstr("[3, 4, 3], got F32 [2, 4, 3]")));
  EXPECT_THAT(
      OpenStack(*checkpoint, "w", 2, 4, 3),
      StatusIs(kInvalid, HasSubstr("want one scale, [2, 4], [2, 4, 1], [2, 1, "
                                   "3], [2, 4, ?] with equal groups, or [2, 1, "
                                   "1], got F32 [4, 1]")));
  EXPECT_THAT(
      OpenStack(*checkpoint, "w.weight", 1, 2, 16),
      StatusIs(kUnimplemented, HasSubstr("int4 of several experts in one")));
}

TEST(OpenMatrixTest, ReadsAFlatTensorOfExperts) {
  // DBRX: [experts * d_ff, d_model]; w2 is used transposed.
  const TestCheckpoint checkpoint(
      {FloatTensor("w2", DType::kF32, {8, 3}, StackValues())});
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix flat,
                           OpenMatrix(*checkpoint, "w2", 8, 3));
  const StoredMatrix expert = flat.Rows(4, 4);
  EXPECT_THAT(RowOf(expert, 1), ElementsAre(110, 111, 112));
  EXPECT_THAT(RowOf(expert.Transposed(), 2), ElementsAre(102, 112, 122, 132));
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

#include "server/wire/tensor_codec.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "experts/base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kDModel = 3;
constexpr int64_t kMaxTokens = 100;

v1::Tensor MakeTensor(int dtype, const std::vector<int64_t>& shape,
                      std::string data) {
  v1::Tensor tensor;
  tensor.set_dtype(static_cast<v1::DType>(dtype));
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_data(std::move(data));
  return tensor;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  if (values.empty()) return "";
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

v1::Tensor Ids(int64_t tokens, int64_t k, const std::vector<int32_t>& ids) {
  return MakeTensor(v1::I32, {tokens, k}, Bytes(ids));
}
v1::Tensor Weights(int64_t tokens, int64_t k,
                   const std::vector<float>& weights) {
  return MakeTensor(v1::F32, {tokens, k}, Bytes(weights));
}

// Hidden states -------------------------------------------------------------

TEST(CheckHiddenStatesTest, AcceptsTheThreeFloatTypes) {
  struct Row {
    v1::DType dtype;
    size_t bytes;
  };
  for (const Row& row : {Row{v1::F32, 4}, {v1::BF16, 2}, {v1::F16, 2}}) {
    SCOPED_TRACE(v1::DType_Name(row.dtype));
    const v1::Tensor tensor =
        MakeTensor(row.dtype, {2, 3}, std::string(6 * row.bytes, 'x'));
    MOE_ASSERT_OK_AND_ASSIGN(
        const WireMatrix matrix,
        CheckHiddenStates(tensor, "hidden_states", kDModel, kMaxTokens));
    EXPECT_EQ(matrix.dtype, row.dtype);
    EXPECT_EQ(matrix.rows, 2);
    EXPECT_EQ(matrix.cols, 3);
    EXPECT_EQ(matrix.data.Together(1), tensor.data().data());
  }
}

TEST(CheckHiddenStatesTest, AcceptsNoTokensAndTheMostThereMayBe) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const WireMatrix none,
      CheckHiddenStates(MakeTensor(v1::F32, {0, 3}, ""), "x", 3, kMaxTokens));
  EXPECT_EQ(none.rows, 0);
  MOE_ASSERT_OK_AND_ASSIGN(
      const WireMatrix most,
      CheckHiddenStates(MakeTensor(v1::BF16, {100, 3}, std::string(600, 'x')),
                        "x", 3, kMaxTokens));
  EXPECT_EQ(most.rows, 100);
}

TEST(OutputDTypeTest, IsTheOneThatIsAskedForOrElseThatOfTheInput) {
  EXPECT_EQ(OutputDType(v1::DTYPE_UNSPECIFIED, v1::BF16).value(), v1::BF16);
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    EXPECT_EQ(OutputDType(dtype, v1::F32).value(), dtype);
  }
  EXPECT_THAT(OutputDType(v1::I32, v1::F32),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "output_dtype: want F32, BF16 or F16, got I32"));
  for (const int unknown : {17, -1}) {
    EXPECT_THAT(OutputDType(static_cast<v1::DType>(unknown), v1::F32),
                StatusIs(kInvalid, HasSubstr("output_dtype: want F32")));
  }
}

struct BadTensorCase {
  std::string name;
  v1::Tensor tensor;
  absl::StatusCode code;
  std::string message;
};

class CheckHiddenStatesErrorTest
    : public ::testing::TestWithParam<BadTensorCase> {};

TEST_P(CheckHiddenStatesErrorTest, NamesTheFieldWantedAndGot) {
  EXPECT_THAT(CheckHiddenStates(GetParam().tensor, "hidden_states", kDModel,
                                kMaxTokens),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
}

constexpr int64_t kHuge = int64_t{1} << 62;

INSTANTIATE_TEST_SUITE_P(
    All, CheckHiddenStatesErrorTest,
    ::testing::Values(
        BadTensorCase{"NoTensor", v1::Tensor(), kInvalid,
                      "hidden_states.dtype: want F32, BF16 or F16, got "
                      "DTYPE_UNSPECIFIED"},
        BadTensorCase{"UnknownDType", MakeTensor(99, {2, 3}, ""), kInvalid,
                      "hidden_states.dtype: want F32, BF16 or F16, got 99"},
        BadTensorCase{"NegativeDType", MakeTensor(-7, {2, 3}, ""), kInvalid,
                      "hidden_states.dtype: want F32, BF16 or F16, got -7"},
        BadTensorCase{"KnownButUnsupportedDType",
                      MakeTensor(v1::I32, {2, 3}, std::string(24, 'x')),
                      absl::StatusCode::kUnimplemented,
                      "hidden_states.dtype: want F32, BF16 or F16, got I32"},
        BadTensorCase{"NoShape", MakeTensor(v1::F32, {}, "xxxx"), kInvalid,
                      "hidden_states.shape: want [tokens, 3], got []"},
        BadTensorCase{"OneDimension", MakeTensor(v1::F32, {3}, "xxxx"),
                      kInvalid,
                      "hidden_states.shape: want [tokens, 3], got [3]"},
        BadTensorCase{"ThreeDimensions",
                      MakeTensor(v1::F32, {1, 2, 3}, std::string(24, 'x')),
                      kInvalid,
                      "hidden_states.shape: want [tokens, 3], got [1, 2, 3]"},
        BadTensorCase{"ManyDimensions",
                      MakeTensor(v1::F32, std::vector<int64_t>(100000, 1), ""),
                      kInvalid,
                      "got [1, 1, 1, 1, 1, 1, 1, 1, ... 100000 dimensions]"},
        BadTensorCase{
            "WrongWidth", MakeTensor(v1::F32, {2, 4}, std::string(32, 'x')),
            kInvalid, "hidden_states.shape: want [tokens, 3], got [2, 4]"},
        BadTensorCase{"NegativeTokens", MakeTensor(v1::F32, {-1, 3}, ""),
                      kInvalid,
                      "hidden_states.shape: want [tokens, 3], got [-1, 3]"},
        BadTensorCase{"NegativeWidth", MakeTensor(v1::F32, {2, -3}, ""),
                      kInvalid,
                      "hidden_states.shape: want [tokens, 3], got [2, -3]"},
        BadTensorCase{
            "BothNegative", MakeTensor(v1::F32, {-2, -3}, std::string(24, 'x')),
            kInvalid, "hidden_states.shape: want [tokens, 3], got [-2, -3]"},
        BadTensorCase{"OverflowingProduct",
                      MakeTensor(v1::F32, {kHuge, kHuge}, ""), kInvalid,
                      "hidden_states.shape: want [tokens, 3], got "
                      "[4611686018427387904, 4611686018427387904]"},
        BadTensorCase{"OverflowingTokens", MakeTensor(v1::F32, {kHuge, 3}, ""),
                      kInvalid,
                      "hidden_states.shape: want at most 100 tokens, got "
                      "[4611686018427387904, 3]"},
        BadTensorCase{
            "LeastInteger",
            MakeTensor(v1::F32, {std::numeric_limits<int64_t>::min(), 3}, ""),
            kInvalid, "hidden_states.shape: want [tokens, 3], got "},
        BadTensorCase{"TooManyTokens",
                      MakeTensor(v1::F32, {101, 3}, std::string(1212, 'x')),
                      kInvalid,
                      "hidden_states.shape: want at most 100 tokens, got "
                      "[101, 3]"},
        BadTensorCase{"NoData", MakeTensor(v1::F32, {2, 3}, ""), kInvalid,
                      "hidden_states.data: want 24 bytes for [2, 3] of F32, "
                      "got 0"},
        BadTensorCase{"ShortData",
                      MakeTensor(v1::BF16, {2, 3}, std::string(11, 'x')),
                      kInvalid,
                      "hidden_states.data: want 12 bytes for [2, 3] of BF16, "
                      "got 11"},
        BadTensorCase{"LongData",
                      MakeTensor(v1::F16, {2, 3}, std::string(24, 'x')),
                      kInvalid,
                      "hidden_states.data: want 12 bytes for [2, 3] of F16, "
                      "got 24"},
        BadTensorCase{"DataForNoTokens", MakeTensor(v1::F32, {0, 3}, "xxxx"),
                      kInvalid,
                      "hidden_states.data: want 0 bytes for [0, 3] of F32, "
                      "got 4"}),
    [](const auto& test) { return test.param.name; });

TEST(CheckHiddenStatesTest, ErrorsNameTheFieldOfTheCaller) {
  EXPECT_THAT(CheckHiddenStates(v1::Tensor(), "prompt", kDModel, kMaxTokens),
              StatusIs(kInvalid, StartsWith("prompt.dtype: ")));
}

TEST(CheckHiddenStatesTest, ErrorsNeverShowValues) {
  const absl::Status status =
      CheckHiddenStates(MakeTensor(v1::F32, {2, 3}, "SECRET"), "hidden_states",
                        kDModel, kMaxTokens)
          .status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(HasSubstr("SECRET")));
}

// Routing -------------------------------------------------------------------

constexpr int64_t kExperts = 5;

TEST(CheckRoutingTest, AcceptsSkipsAndAnyNumberOfDistinctExperts) {
  const v1::Tensor ids = Ids(2, 5, {4, 3, 2, 1, 0, -1, -1, 2, -1, 0});
  const v1::Tensor weights = Weights(2, 5, std::vector<float>(10, 0.5F));
  MOE_ASSERT_OK_AND_ASSIGN(const WireRouting routing,
                           CheckRouting(ids, weights, 2, kExperts));
  EXPECT_EQ(routing.ids.dtype, v1::I32);
  EXPECT_EQ(routing.ids.rows, 2);
  EXPECT_EQ(routing.ids.cols, 5);
  EXPECT_EQ(routing.ids.data.Together(1), ids.data().data());
  EXPECT_EQ(routing.weights.dtype, v1::F32);
  EXPECT_EQ(routing.weights.data.Together(1), weights.data().data());
}

TEST(CheckRoutingTest, AcceptsNoTokens) {
  MOE_EXPECT_OK(CheckRouting(Ids(0, 2, {}), Weights(0, 2, {}), 0, kExperts));
}

struct BadRoutingCase {
  std::string name;
  v1::Tensor ids;
  v1::Tensor weights;
  std::string message;
};

class CheckRoutingErrorTest : public ::testing::TestWithParam<BadRoutingCase> {
};

TEST_P(CheckRoutingErrorTest, NamesTheFieldWantedAndGot) {
  EXPECT_THAT(
      CheckRouting(GetParam().ids, GetParam().weights, /*tokens=*/2, kExperts),
      StatusIs(kInvalid, HasSubstr(GetParam().message)));
}

v1::Tensor GoodIds() { return Ids(2, 2, {0, 1, 2, 3}); }
v1::Tensor GoodWeights() { return Weights(2, 2, {1, 1, 1, 1}); }

INSTANTIATE_TEST_SUITE_P(
    All, CheckRoutingErrorTest,
    ::testing::Values(
        BadRoutingCase{"NoIds", v1::Tensor(), GoodWeights(),
                       "expert_ids.shape: want [2, 1 to 5], got []"},
        BadRoutingCase{"NoWeights", GoodIds(), v1::Tensor(),
                       "routing_weights.dtype: want F32, got "
                       "DTYPE_UNSPECIFIED"},
        BadRoutingCase{"IdsOfAnotherType",
                       MakeTensor(v1::F32, {2, 2}, std::string(16, '\0')),
                       GoodWeights(), "expert_ids.dtype: want I32, got F32"},
        BadRoutingCase{"IdsOfAnUnknownType",
                       MakeTensor(42, {2, 2}, std::string(16, '\0')),
                       GoodWeights(), "expert_ids.dtype: want I32, got 42"},
        BadRoutingCase{"WeightsOfAnotherType", GoodIds(),
                       MakeTensor(v1::BF16, {2, 2}, std::string(8, '\0')),
                       "routing_weights.dtype: want F32, got BF16"},
        BadRoutingCase{"IdsOfFewerTokens", Ids(1, 2, {0, 1}), GoodWeights(),
                       "expert_ids.shape: want [2, 1 to 5], got [1, 2]"},
        BadRoutingCase{"IdsInOneDimension", MakeTensor(v1::I32, {4}, ""),
                       GoodWeights(),
                       "expert_ids.shape: want [2, 1 to 5], got [4]"},
        BadRoutingCase{"NoExpertPerToken", Ids(2, 0, {}), Weights(2, 0, {}),
                       "expert_ids.shape: want [2, 1 to 5], got [2, 0]"},
        BadRoutingCase{"NegativeExpertsPerToken",
                       MakeTensor(v1::I32, {2, -2}, ""), GoodWeights(),
                       "expert_ids.shape: want [2, 1 to 5], got [2, -2]"},
        BadRoutingCase{"MoreExpertsPerTokenThanThereAre",
                       Ids(2, 6, std::vector<int32_t>(12, -1)),
                       Weights(2, 6, std::vector<float>(12, 1)),
                       "expert_ids.shape: want [2, 1 to 5], got [2, 6]"},
        BadRoutingCase{"OverflowingShape",
                       MakeTensor(v1::I32, {kHuge, kHuge}, ""), GoodWeights(),
                       "expert_ids.shape: want [2, 1 to 5], got "
                       "[4611686018427387904, 4611686018427387904]"},
        BadRoutingCase{"WeightsOfAnotherShape", GoodIds(),
                       Weights(2, 1, {1, 1}),
                       "routing_weights.shape: want [2, 2], got [2, 1]"},
        BadRoutingCase{"WeightsTransposed", Ids(2, 1, {0, 1}),
                       Weights(1, 2, {1, 1}),
                       "routing_weights.shape: want [2, 1], got [1, 2]"},
        BadRoutingCase{"ShortIds", MakeTensor(v1::I32, {2, 2}, "xxx"),
                       GoodWeights(),
                       "expert_ids.data: want 16 bytes for [2, 2] of I32, got "
                       "3"},
        BadRoutingCase{"LongWeights", GoodIds(),
                       MakeTensor(v1::F32, {2, 2}, std::string(20, '\0')),
                       "routing_weights.data: want 16 bytes for [2, 2] of F32, "
                       "got 20"},
        BadRoutingCase{"IdTooLarge", Ids(2, 2, {0, 1, 2, 5}), GoodWeights(),
                       "expert_ids.data: want -1 to 4, got 5 at [1, 1]"},
        BadRoutingCase{"IdTooSmall", Ids(2, 2, {0, -2, 2, 3}), GoodWeights(),
                       "expert_ids.data: want -1 to 4, got -2 at [0, 1]"},
        BadRoutingCase{
            "LeastId",
            Ids(2, 2, {std::numeric_limits<int32_t>::min(), 1, 2, 3}),
            GoodWeights(),
            "expert_ids.data: want -1 to 4, got -2147483648 at "
            "[0, 0]"},
        BadRoutingCase{"ExpertTwice", Ids(2, 2, {0, 1, 3, 3}), GoodWeights(),
                       "expert_ids.data: want distinct experts, got 3 twice in "
                       "row 1"},
        BadRoutingCase{"ExpertTwiceApart", Ids(2, 4, {0, -1, 2, 0, 0, 1, 2, 3}),
                       Weights(2, 4, std::vector<float>(8, 1)),
                       "got 0 twice in row 0"}),
    [](const auto& test) { return test.param.name; });

// Values --------------------------------------------------------------------

WireMatrix Wire(const v1::Tensor& tensor) {
  return {.dtype = tensor.dtype(),
          .rows = tensor.shape(0),
          .cols = tensor.shape(1),
          .data = tensor.data().data()};
}

std::vector<float> Decoded(const v1::Tensor& tensor) {
  const WireMatrix wire = Wire(tensor);
  std::vector<float> values(static_cast<size_t>(wire.rows * wire.cols));
  Decode(wire, Matrix(values.data(), wire.rows, wire.cols));
  return values;
}

TEST(TensorCodecTest, ElementBytesAreThoseOfTheType) {
  EXPECT_EQ(ElementBytes(v1::F32), 4);
  EXPECT_EQ(ElementBytes(v1::BF16), 2);
  EXPECT_EQ(ElementBytes(v1::F16), 2);
  EXPECT_EQ(ElementBytes(v1::I32), 4);
}

TEST(TensorCodecTest, IsLittleEndianAndRowMajor) {
  const std::vector<float> values = {1.0F, -2.0F};
  v1::Tensor tensor;
  Encode(ConstMatrix(values.data(), 2, 1), v1::F32, tensor);
  EXPECT_EQ(tensor.dtype(), v1::F32);
  EXPECT_THAT(tensor.shape(), ElementsAre(2, 1));
  EXPECT_EQ(tensor.data(), std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
  Encode(ConstMatrix(values.data(), 1, 2), v1::BF16, tensor);
  EXPECT_THAT(tensor.shape(), ElementsAre(1, 2));
  EXPECT_EQ(tensor.data(), std::string("\x80\x3f\0\xc0", 4));
  Encode(ConstMatrix(values.data(), 1, 2), v1::F16, tensor);
  EXPECT_EQ(tensor.data(), std::string("\0\x3c\0\xc0", 4));
}

TEST(TensorCodecTest, F32RoundTripsTheBytes) {
  auto values = RandomFloats(7 * 5, 1e6F, 1);
  values[3] = std::numeric_limits<float>::infinity();
  values[4] = -0.0F;
  values[5] = std::numeric_limits<float>::denorm_min();
  values[6] = std::bit_cast<float>(0x7fc12345U);  // a NaN with a payload
  v1::Tensor tensor;
  Encode(ConstMatrix(values.data(), 7, 5), v1::F32, tensor);
  EXPECT_EQ(tensor.data(), Bytes(values));
  EXPECT_EQ(Bytes(Decoded(tensor)), Bytes(values));
}

class HalfPrecisionTest : public ::testing::TestWithParam<v1::DType> {};

TEST_P(HalfPrecisionTest, RoundTripsEveryValueItHas) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const v1::Tensor tensor = MakeTensor(GetParam(), {256, 256}, Bytes(bits));
  const std::vector<float> values = Decoded(tensor);
  v1::Tensor again;
  Encode(ConstMatrix(values.data(), 256, 256), GetParam(), again);
  const std::vector<float> values_again = Decoded(again);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(values_again[i])) << i;
      continue;
    }
    ASSERT_EQ(LoadUnaligned<uint16_t>(again.data().data() + 2 * i), bits[i]);
  }
}

TEST_P(HalfPrecisionTest, RoundsToTheNearest) {
  const auto values = RandomFloats(11 * 13, 8.0F, 2);
  v1::Tensor tensor;
  Encode(ConstMatrix(values.data(), 11, 13), GetParam(), tensor);
  EXPECT_THAT(tensor.data(), SizeIs(11 * 13 * 2));
  // Half a unit in the last place: 8 or 11 significant bits.
  const double half_ulp = GetParam() == v1::BF16 ? 0x1p-9 : 0x1p-12;
  const std::vector<float> decoded = Decoded(tensor);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(decoded[i], values[i],
                2 * half_ulp * std::fabs(values[i]) + 0x1p-25)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, HalfPrecisionTest,
                         ::testing::Values(v1::BF16, v1::F16),
                         [](const auto& test) {
                           return v1::DType_Name(test.param);
                         });

TEST(TensorCodecTest, DecodesAtAnyAlignment) {
  const std::vector<float> floats = {1.5F, -2.25F, 1e30F, 0.0F, 3.0F, -4.0F};
  const std::vector<int32_t> ids = {1, -1, 1023, 0, 7, 2};
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    v1::Tensor tensor;
    Encode(ConstMatrix(floats.data(), 2, 3), dtype, tensor);
    const std::vector<float> want = Decoded(tensor);
    for (size_t shift = 0; shift < 8; ++shift) {
      const std::string memory = std::string(shift, '!') + tensor.data();
      WireMatrix wire = Wire(tensor);
      wire.data = memory.data() + shift;
      std::vector<float> got(6);
      Decode(wire, Matrix(got.data(), 2, 3));
      EXPECT_EQ(got, want);
    }
  }
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string memory = std::string(shift, '!') + Bytes(ids);
    std::vector<int32_t> got(6);
    DecodeIds(
        {.dtype = v1::I32, .rows = 2, .cols = 3, .data = memory.data() + shift},
        MatrixView<int32_t>(got.data(), 2, 3));
    EXPECT_EQ(got, ids);
  }
}

TEST(TensorCodecTest, ReadsAndWritesRowsThatAreFurtherApartThanLong) {
  const std::vector<float> memory = {1, 2, 99, 3, 4, 99};
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    v1::Tensor tensor;
    Encode(ConstMatrix(memory.data(), 2, 2, 3), dtype, tensor);
    EXPECT_THAT(Decoded(tensor), ElementsAre(1, 2, 3, 4));
    std::vector<float> out(6, 42.0F);
    Decode(Wire(tensor), Matrix(out.data(), 2, 2, 3));
    EXPECT_THAT(out, ElementsAre(1, 2, 42, 3, 4, 42));
  }
  const std::vector<int32_t> ids = {1, 2, 99, 3, -1, 99};
  v1::Tensor tensor;
  EncodeIds(MatrixView<const int32_t>(ids.data(), 2, 2, 3), tensor);
  std::vector<int32_t> out(6, 42);
  DecodeIds(Wire(tensor), MatrixView<int32_t>(out.data(), 2, 2, 3));
  EXPECT_THAT(out, ElementsAre(1, 2, 42, 3, -1, 42));
}

TEST(TensorCodecTest, IdsRoundTrip) {
  const std::vector<int32_t> ids = {0, -1, 1023, 5, 6, 7};
  v1::Tensor tensor;
  EncodeIds(MatrixView<const int32_t>(ids.data(), 3, 2), tensor);
  EXPECT_EQ(tensor.dtype(), v1::I32);
  EXPECT_THAT(tensor.shape(), ElementsAre(3, 2));
  EXPECT_EQ(tensor.data(), Bytes(ids));
  std::vector<int32_t> got(6);
  DecodeIds(Wire(tensor), MatrixView<int32_t>(got.data(), 3, 2));
  EXPECT_THAT(got, ElementsAreArray(ids));
}

TEST(TensorCodecTest, NoTokensRoundTrip) {
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    v1::Tensor tensor = MakeTensor(v1::I32, {9}, "left over");
    Encode(ConstMatrix(nullptr, 0, 3), dtype, tensor);
    EXPECT_THAT(tensor.shape(), ElementsAre(0, 3));
    EXPECT_EQ(tensor.data(), "");
    MOE_ASSERT_OK_AND_ASSIGN(
        const WireMatrix wire,
        CheckHiddenStates(tensor, "hidden_states", 3, kMaxTokens));
    Decode(wire, Matrix(nullptr, 0, 3));
  }
}

TEST(TensorCodecTest, WhatIsEncodedPassesTheCheck) {
  const auto values = RandomFloats(4 * 3, 1.0F, 3);
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    v1::Tensor tensor;
    Encode(ConstMatrix(values.data(), 4, 3), dtype, tensor);
    MOE_EXPECT_OK(CheckHiddenStates(tensor, "hidden_states", 3, kMaxTokens));
  }
}

}  // namespace
}  // namespace moe

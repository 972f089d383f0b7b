#include "server/wire/wire_message.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "gtest/gtest.h"
#include "server/wire/wire_fields.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

constexpr int kFirst = v1::ForwardRequest::kHiddenStatesFieldNumber;
constexpr int kLast = v1::ForwardRequest::kRoutingWeightsFieldNumber;

// The bytes in pieces of `size`.
grpc::ByteBuffer InPieces(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) {
    slices.emplace_back(bytes.substr(at, size));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::ForwardRequest Request() {
  v1::ForwardRequest request;
  request.set_model("model");
  request.set_layer(3);
  request.set_request_id("id");
  request.set_return_routing(true);
  request.set_output_dtype(v1::F16);
  std::vector<float> rows(2 * 3);
  std::iota(rows.begin(), rows.end(), 1.0F);
  Encode(ConstMatrix(rows.data(), 2, 3), v1::BF16,
         *request.mutable_hidden_states());
  Encode(ConstMatrix(rows.data(), 2, 2), v1::F32,
         *request.mutable_routing_weights());
  const std::vector<int32_t> ids = {5, -1, 7, 0};
  EncodeIds(MatrixView<const int32_t>(ids.data(), 2, 2),
            *request.mutable_expert_ids());
  return request;
}

TEST(TensorDataTest, ReadsTheSameWhereverTheBytesAreCut) {
  const v1::ForwardRequest want = Request();
  const std::string bytes = want.SerializeAsString();
  for (size_t size = 1; size <= bytes.size(); ++size) {
    SCOPED_TRACE(size);
    TensorData data;
    v1::ForwardRequest got;
    MOE_ASSERT_OK(data.Parse(InPieces(bytes, size), {kFirst, kLast}, &got));
    EXPECT_EQ(got.model(), "model");
    EXPECT_EQ(got.request_id(), "id");
    EXPECT_TRUE(got.hidden_states().data().empty()) << "not copied";
    MOE_ASSERT_OK_AND_ASSIGN(
        const WireMatrix states,
        CheckHiddenStates(data.Tensor(kFirst, got.hidden_states()), "x", 3, 9));
    std::vector<float> rows(6);
    Decode(states, Matrix(rows.data(), 2, 3));
    EXPECT_THAT(rows, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
    Decode(states.Rows(1, 1), Matrix(rows.data(), 1, 3));
    EXPECT_THAT(rows, ::testing::ElementsAre(4, 5, 6, 4, 5, 6));
    MOE_ASSERT_OK_AND_ASSIGN(
        const WireRouting routing,
        CheckRouting(data.Tensor(v1::ForwardRequest::kExpertIdsFieldNumber,
                                 got.expert_ids()),
                     data.Tensor(kLast, got.routing_weights()), 2, 8));
    std::vector<int32_t> ids(4);
    DecodeIds(routing.ids, MatrixView<int32_t>(ids.data(), 2, 2));
    EXPECT_THAT(ids, ::testing::ElementsAre(5, -1, 7, 0));
  }
}

TEST(TensorDataTest, FieldsThatComeTwiceAreMergedAsProtobufDoes) {
  v1::ForwardRequest first = Request();
  v1::ForwardRequest second;
  second.mutable_hidden_states()->set_data("later");
  v1::ForwardRequest third;
  third.mutable_hidden_states()->set_dtype(v1::F16);
  const std::string bytes = first.SerializeAsString() +
                            second.SerializeAsString() +
                            third.SerializeAsString();
  v1::ForwardRequest want;
  ASSERT_TRUE(want.ParseFromString(bytes));
  TensorData data;
  v1::ForwardRequest got;
  MOE_ASSERT_OK(data.Parse(InPieces(bytes, 7), {kFirst, kLast}, &got));
  const WireTensor tensor = data.Tensor(kFirst, got.hidden_states());
  EXPECT_EQ(tensor.head.dtype(), v1::F16);
  EXPECT_EQ(tensor.head.shape_size(), want.hidden_states().shape_size());
  std::string text(tensor.size, '\0');
  tensor.data.CopyTo(text.data(), text.size());
  EXPECT_EQ(text, want.hidden_states().data());
  EXPECT_EQ(text, "later");
}

TEST(TensorDataTest, MissingTensorIsEmpty) {
  TensorData data;
  v1::ForwardRequest got;
  MOE_ASSERT_OK(data.Parse(InPieces("", 1), {kFirst, kLast}, &got));
  EXPECT_EQ(data.Tensor(kFirst, got.hidden_states()).size, 0U);
  EXPECT_FALSE(got.has_hidden_states());
}

TEST(TensorDataTest, LeavesTheFirstPackedListOfEachFieldInPlace) {
  const std::string in_place = FieldHead(2, 3) + "\x01\x02\x03";
  const std::string rest = FieldHead(2, 1) + "\x04" + "\x10\x05";
  for (size_t size = 1; size < 10; ++size) {
    TensorData data;
    v1::Tensor got;
    MOE_ASSERT_OK(data.Parse(InPieces("\x08\x02" + in_place + rest, size), {},
                             &got, {.first = 2, .last = 2}));
    EXPECT_EQ(got.dtype(), v1::BF16);
    EXPECT_THAT(got.shape(), ::testing::ElementsAre(4, 5)) << "is parsed";
    const TensorData::List list = data.ListOf(2);
    std::string bytes(list.size, '\0');
    list.bytes.CopyTo(bytes.data(), bytes.size());
    EXPECT_EQ(bytes, "\x01\x02\x03");
    EXPECT_EQ(data.ListOf(3).size, 0U);
  }
}

TEST(TensorDataTest, RefusesWhatProtobufRefuses) {
  const std::string bytes = Request().SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    v1::ForwardRequest want;
    v1::ForwardRequest got;
    TensorData data;
    EXPECT_EQ(data.Parse(InPieces(cut, 5), {kFirst, kLast}, &got).ok(),
              want.ParseFromString(cut))
        << size;
  }
  v1::ForwardRequest got;
  EXPECT_THAT(TensorData().Parse(InPieces(std::string(50, '\xff'), 5),
                                 {kFirst, kLast}, &got),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request: want a moe.v1.ForwardRequest message"));
}

// Both in unknown fields, which are copied, and in tensors, which are cut.
TEST(TensorDataTest, IsAsStrictAsProtobuf) {
  const auto groups = [](size_t depth) {
    return std::string(depth, '\x5b') + std::string(depth, '\x5c');
  };
  // Field 11 is not one of ForwardRequest's; 0x5b and 0x5c begin and end it as
  // a group.
  const struct {
    const char* name;
    std::string bytes;
    bool good;
  } cases[] = {
      {"an unknown varint", std::string("\x58\x01", 2), true},
      {"a varint of ten bytes",
       std::string("\x58\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), true},
      {"a varint of eleven bytes",
       std::string("\x58\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false},
      {"a tag of five bytes", std::string("\xd8\x80\x80\x80\x00\x01", 6), true},
      {"a tag of six bytes", std::string("\xd8\x80\x80\x80\x80\x00\x01", 7),
       false},
      {"a length of five bytes", std::string("\x5a\x80\x80\x80\x80\x00", 6),
       true},
      {"a length of six bytes", std::string("\x5a\x80\x80\x80\x80\x80\x00", 7),
       false},
      {"a length above 2^31", std::string("\x5a\x80\x80\x80\x80\x08", 6),
       false},
      {"a length above 2^32", std::string("\x5a\x80\x80\x80\x80\x10", 6),
       false},
      {"a length beyond the message",
       std::string("\x5a\xf0\xff\xff\xff\x07", 6), false},
      {"field 0", std::string("\x00\x01", 2), false},
      {"wire type 6", std::string("\x5e\x01"), false},
      {"an empty group", groups(1), true},
      {"a group that does not end", std::string("\x5b"), false},
      {"the end of no group", std::string("\x5c"), false},
      {"the end of another group", std::string("\x5b\x64"), false},
      {"a tag of six bytes in a group",
       std::string("\x5b\xd8\x80\x80\x80\x80\x00\x01\x5c", 9), false},
      {"deep groups", groups(90), true},
      {"too deep groups", groups(110), false},
  };
  const auto in_tensor = [](const std::string& bytes) {
    return FieldHead(kFirst, bytes.size()) + bytes;
  };
  for (const auto& c : cases) {
    for (const std::string& bytes : {c.bytes, in_tensor(c.bytes)}) {
      v1::ForwardRequest want;
      v1::ForwardRequest got;
      EXPECT_EQ(want.ParseFromString(bytes), c.good) << c.name;
      EXPECT_EQ(
          TensorData().Parse(InPieces(bytes, 3), {kFirst, kLast}, &got).ok(),
          c.good)
          << c.name;
      if (c.good) {
        EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString()) << c.name;
      }
    }
  }
}

// Of whatever kind they are, and wherever.
TEST(TensorDataTest, BoundsWhatIsNotTensorData) {
  constexpr size_t kMany = 40'000;
  std::string empty_groups;  // of field 11
  std::string varints;
  for (size_t i = 0; i < kMany; ++i) {
    empty_groups += "\x5b\x5c";
    varints += "\x58\x01";
  }
  const std::string long_text(2 * kMany, 'x');
  const auto in_tensor = [](const std::string& bytes) {
    return FieldHead(kFirst, bytes.size()) + bytes;
  };
  const struct {
    const char* name;
    std::string bytes;
  } cases[] = {
      {"unknown groups", empty_groups},
      {"a group of groups", "\x5b" + empty_groups + "\x5c"},
      {"unknown numbers", varints},
      {"unknown bytes", FieldHead(11, long_text.size()) + long_text},
      {"a name", FieldHead(1, long_text.size()) + long_text},
      {"a packed shape", in_tensor(FieldHead(2, long_text.size()) + long_text)},
      {"unknown groups of a tensor", in_tensor(empty_groups)},
  };
  for (const auto& c : cases) {
    v1::ForwardRequest got;
    EXPECT_THAT(
        TensorData().Parse(InPieces(c.bytes, 4096), {kFirst, kLast}, &got),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "request: want at most 65536 bytes besides the data of "
                 "tensors, got more"))
        << c.name;
  }
  // The data itself may be of any size, also that which a later one replaces.
  v1::ForwardRequest got;
  const std::string data = FieldHead(3, long_text.size()) + long_text;
  MOE_EXPECT_OK(TensorData().Parse(InPieces(in_tensor(data + data), 4096),
                                   {kFirst, kLast}, &got));
}

TEST(TensorDataTest, TakesAsManyBytesBesidesTheDataAsThereMayBe) {
  v1::ForwardRequest request = Request();
  const size_t tensor_bytes = request.hidden_states().data().size() +
                              request.expert_ids().data().size() +
                              request.routing_weights().data().size();
  request.mutable_request_id()->assign(kMaxHeadBytes, 'x');
  const size_t excess =
      request.SerializeAsString().size() - tensor_bytes - kMaxHeadBytes;
  // Tag and length of each tensor's data count as its data.
  constexpr size_t kDataHeads = 3 * 2;
  for (const size_t more : {0, 1}) {
    request.mutable_request_id()->assign(
        kMaxHeadBytes - excess + kDataHeads + more, 'x');
    v1::ForwardRequest got;
    const absl::Status status = TensorData().Parse(
        InPieces(request.SerializeAsString(), 100), {kFirst, kLast}, &got);
    EXPECT_EQ(status.ok(), more == 0) << status;
  }
}

TEST(OutgoingMessageTest, IsTheMessageThatProtobufWouldWrite) {
  v1::ForwardResponse want;
  want.set_request_id("id");
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> ids = {7, 8};
  Encode(ConstMatrix(rows.data(), 2, 3), v1::F16, *want.mutable_output());
  EncodeIds(MatrixView<const int32_t>(ids.data(), 2, 1),
            *want.mutable_expert_ids());
  const OutgoingMessage::TensorPlan plans[] = {
      {v1::ForwardResponse::kOutputFieldNumber, v1::F16, 2, 3},
      {v1::ForwardResponse::kExpertIdsFieldNumber, v1::I32, 2, 1}};
  for (const bool in_stream : {false, true}) {
    OutgoingMessage response;
    response.Reserve(
        FieldHead(v1::ForwardResponse::kRequestIdFieldNumber, 2) + "id", plans,
        in_stream ? v1::ForwardStreamResponse::kResponseFieldNumber : 0);
    for (int64_t r = 0; r < 2; ++r) {
      EncodeRows(ConstMatrix(&rows[static_cast<size_t>(3 * r)], 1, 3), v1::F16,
                 response.Row(0, r));
      EncodeRows(MatrixView<const int32_t>(&ids[static_cast<size_t>(r)], 1, 1),
                 response.Row(1, r));
    }
    grpc::ByteBuffer bytes = response.Take();
    v1::ForwardResponse got;
    if (in_stream) {
      v1::ForwardStreamResponse streamed;
      EXPECT_TRUE(
          grpc::SerializationTraits<v1::ForwardStreamResponse>::Deserialize(
              &bytes, &streamed)
              .ok());
      got = streamed.response();
    } else {
      EXPECT_TRUE(grpc::SerializationTraits<v1::ForwardResponse>::Deserialize(
                      &bytes, &got)
                      .ok());
    }
    EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString());
  }
}

TEST(OutgoingMessageTest, AnswerWithoutRowsIsAMessage) {
  OutgoingMessage response;
  const OutgoingMessage::TensorPlan plans[] = {
      {v1::ForwardResponse::kOutputFieldNumber, v1::F32, 0, 3}};
  response.Reserve("", plans, 0);
  grpc::ByteBuffer bytes = response.Take();
  v1::ForwardResponse got;
  ASSERT_TRUE(
      grpc::SerializationTraits<v1::ForwardResponse>::Deserialize(&bytes, &got)
          .ok());
  EXPECT_THAT(got.output().shape(), ::testing::ElementsAre(0, 3));
  EXPECT_EQ(got.output().dtype(), v1::F32);
}

}  // namespace
}  // namespace moe

#include "server/wire/infer_message.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::HasSubstr;
using Elements = inference::InferTensorContents;

// The bytes in pieces of `size`.
grpc::ByteBuffer InPieces(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) {
    slices.emplace_back(bytes.substr(at, size));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Copy(const InferMessage::Data& data) {
  std::string bytes(data.size, '\0');
  data.bytes.CopyTo(bytes.data(), bytes.size());
  return bytes;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

inference::ModelInferRequest Request() {
  inference::ModelInferRequest request;
  request.set_model_name("model");
  request.set_id("id");
  (*request.mutable_parameters())["layer"].set_int64_param(3);
  for (const char* name : {"hidden_states", "expert_ids"}) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype("FP32");
    input.add_shape(1);
    input.add_shape(3);
  }
  request.add_outputs()->set_name("output");
  return request;
}

TEST(InferMessageTest, LeavesRawContentsInPlaceWhereverTheBytesAreCut) {
  inference::ModelInferRequest request = Request();
  const std::string first = BytesOf<float>({1, 2, 3});
  request.add_raw_input_contents(first);
  request.add_raw_input_contents("");
  const std::string bytes = request.SerializeAsString();
  for (size_t size = 1; size <= bytes.size(); ++size) {
    SCOPED_TRACE(size);
    InferMessage message;
    MOE_ASSERT_OK(message.Parse(InPieces(bytes, size)));
    EXPECT_EQ(message.head().model_name(), "model");
    EXPECT_EQ(message.head().id(), "id");
    EXPECT_EQ(message.head().parameters().at("layer").int64_param(), 3);
    ASSERT_EQ(message.head().inputs_size(), 2);
    EXPECT_EQ(message.head().inputs(1).name(), "expert_ids");
    EXPECT_THAT(message.head().inputs(0).shape(), ::testing::ElementsAre(1, 3));
    EXPECT_EQ(message.head().raw_input_contents_size(), 0);
    ASSERT_EQ(message.num_raw(), 2);
    EXPECT_EQ(Copy(message.Raw(0)), first);
    EXPECT_EQ(message.Raw(1).size, 0);
    EXPECT_FALSE(message.ContentsOf(0).any());
    message.DropHead();
    EXPECT_EQ(message.head().inputs_size(), 0);
    EXPECT_EQ(Copy(message.Raw(0)), first) << "stays";
  }
}

TEST(InferMessageTest, ReadsTypedContents) {
  inference::ModelInferRequest request = Request();
  for (const float value : {1.5F, -2.0F, 3.0F}) {
    request.mutable_inputs(0)->mutable_contents()->add_fp32_contents(value);
  }
  for (const int32_t value : {7, -1, 1 << 30}) {
    request.mutable_inputs(1)->mutable_contents()->add_int_contents(value);
  }
  const std::string bytes = request.SerializeAsString();
  for (size_t size = 1; size <= bytes.size(); ++size) {
    SCOPED_TRACE(size);
    InferMessage message;
    MOE_ASSERT_OK(message.Parse(InPieces(bytes, size)));
    EXPECT_TRUE(message.ContentsOf(0).only(Elements::kFp32ContentsFieldNumber));
    EXPECT_EQ(Copy(message.FloatsOf(0)), BytesOf<float>({1.5F, -2.0F, 3.0F}));
    EXPECT_TRUE(message.ContentsOf(1).only(Elements::kIntContentsFieldNumber));
    EXPECT_EQ(Copy(message.IntsOf(1)), BytesOf<int32_t>({7, -1, 1 << 30}));
    EXPECT_FALSE(message.head().inputs(0).has_contents());
  }
}

// A field of `size` < 128 bytes.
std::string Field(int number, const std::string& content) {
  return std::string({static_cast<char>(number << 3 | 2),
                      static_cast<char>(content.size())}) +
         content;
}

TEST(InferMessageTest, JoinsElementsThatComeInSeveralFields) {
  const std::string packed = Field(6, BytesOf<float>({1, 2}));
  const std::string single =
      std::string(1, '\x35') + BytesOf<float>({3});  // field 6, fixed32
  const std::string int_single = std::string("\x10\x05", 2);
  const std::string int_packed = Field(2, std::string("\x06\x07", 2));
  InferMessage message;
  MOE_ASSERT_OK(message.Parse(
      InPieces(Field(5, Field(5, packed + single + packed) + Field(5, packed)) +
                   Field(5, Field(5, int_single + int_packed + int_single)),
               5)));
  EXPECT_EQ(Copy(message.FloatsOf(0)), BytesOf<float>({1, 2, 3, 1, 2, 1, 2}));
  EXPECT_EQ(message.NumInts(1), 4);
  EXPECT_EQ(message.copied_bytes(), 7 * 4 + 4) << "floats, and varints";
  EXPECT_EQ(Copy(message.IntsOf(1)), BytesOf<int32_t>({5, 6, 7, 5}));
  EXPECT_EQ(message.copied_bytes(), 7 * 4 + 4 + 4 * 4);
}

TEST(InferMessageTest, KnowsWhichContentsThereAre) {
  inference::ModelInferRequest request = Request();
  Elements& contents = *request.mutable_inputs(0)->mutable_contents();
  contents.add_int64_contents(1);
  contents.add_bytes_contents("");
  InferMessage message;
  MOE_ASSERT_OK(message.Parse(InPieces(request.SerializeAsString(), 7)));
  EXPECT_TRUE(message.ContentsOf(0).any());
  EXPECT_TRUE(message.ContentsOf(0).has(Elements::kInt64ContentsFieldNumber));
  EXPECT_TRUE(message.ContentsOf(0).has(Elements::kBytesContentsFieldNumber));
  EXPECT_FALSE(message.ContentsOf(0).has(Elements::kFp32ContentsFieldNumber));
  EXPECT_FALSE(message.ContentsOf(0).only(Elements::kInt64ContentsFieldNumber));
  EXPECT_FALSE(message.ContentsOf(1).any());
}

TEST(InferMessageTest, CountsRawContentsBeyondThoseItKeeps) {
  inference::ModelInferRequest request;
  for (int i = 0; i < 1000; ++i) request.add_raw_input_contents("");
  InferMessage message;
  MOE_ASSERT_OK(message.Parse(InPieces(request.SerializeAsString(), 64)));
  EXPECT_EQ(message.num_raw(), 1000);
}

TEST(InferMessageTest, RefusesHeadsThatWouldTakeMuchMemory) {
  // Each costs two bytes on the wire, and much more in memory.
  std::string many_inputs;
  for (size_t i = 0; i < kMaxHeadBytes; ++i) {
    many_inputs += Field(5, "");
  }
  inference::ModelInferRequest long_name = Request();
  long_name.set_model_name(std::string(kMaxHeadBytes, 'x'));
  inference::ModelInferRequest long_shape = Request();
  for (size_t i = 0; i < kMaxHeadBytes; ++i) {
    long_shape.mutable_inputs(0)->add_shape(1);
  }
  // Groups of field 15, one in the other: the whole is one unknown field.
  std::string groups = "\x7b";
  for (size_t i = 0; i < kMaxHeadBytes; ++i) groups += "\x7b\x7c";
  groups += "\x7c";
  for (const std::string& bytes :
       {many_inputs, groups, long_name.SerializeAsString(),
        long_shape.SerializeAsString()}) {
    InferMessage message;
    EXPECT_THAT(message.Parse(InPieces(bytes, 4096)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("besides the data of tensors")));
  }
}

TEST(InferMessageTest, RefusesWhatIsNoSuchMessage) {
  inference::ModelInferRequest request = Request();
  request.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  const std::string good = request.SerializeAsString();
  const std::string bad[] = {
      good.substr(0, good.size() - 1),
      Field(5, Field(5, std::string("\x32\x04\0\0\0", 5))),  // a byte short
      Field(5, Field(5, Field(6, "abc"))),   // no multiple of 4 bytes
      Field(5, std::string("\x2a\x7f", 2)),  // longer than what holds it
      std::string("\x3a\x7f", 2),
      Field(1, "\xff"),  // no UTF-8
      std::string(11, '\xff'),
  };
  for (const std::string& bytes : bad) {
    InferMessage message;
    EXPECT_THAT(message.Parse(InPieces(bytes, 3)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("want an inference.ModelInferRequest")));
  }
}

}  // namespace
}  // namespace moe

#include "server/wire/small_message.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/v1/moe.pb.h"
#include "server/wire/message_head.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

grpc::ByteBuffer InPieces(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) {
    slices.emplace_back(bytes.substr(at, size));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(SmallMessageTest, ParsesWhatIsSerialized) {
  v1::GetModelRequest request;
  for (const char* name : {"", "demo"}) {
    request.set_model(name);
    v1::GetModelRequest got;
    MOE_ASSERT_OK(ParseSmall(Serialize(request), &got));
    EXPECT_EQ(got.model(), name);
  }
}

TEST(SmallMessageTest, LargestIsTakenAndOneByteMoreIsNotRead) {
  v1::GetModelRequest request;
  request.set_model(std::string(kMaxHeadBytes - 4, 'x'));
  std::string bytes = request.SerializeAsString();
  ASSERT_EQ(bytes.size(), kMaxHeadBytes);
  v1::GetModelRequest got;
  MOE_EXPECT_OK(ParseSmall(InPieces(bytes, 1000), &got));
  EXPECT_EQ(got.model(), request.model());

  v1::GetModelRequest untouched;
  bytes += "x";
  EXPECT_THAT(ParseSmall(InPieces(bytes, 1000), &untouched),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request: want at most 65536 bytes, got 65537"));
  EXPECT_EQ(untouched.model(), "");
}

TEST(SmallMessageTest, NamesTheMessageThatTheBytesAreNot) {
  v1::GetModelRequest request;
  EXPECT_THAT(ParseSmall(InPieces("\xff\xff", 1), &request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request: want a moe.v1.GetModelRequest message"));
}

}  // namespace
}  // namespace moe

#include "server/wire/message_head.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/inference.pb.h"
#include "moe/v1/moe.pb.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

TEST(MessageHeadTest, IsMadeOfThePartsThatAreCopied) {
  // Model "ab", something that is left out, and a tensor of type 2.
  const std::string bytes =
      "\x0a\x02"
      "ab...\x08\x02";
  MessageHead head(bytes.data(), 100);
  EXPECT_TRUE(head.Copy(0, 4));
  const size_t tensor = head.BeginMessage();
  EXPECT_TRUE(head.Copy(7, 9));
  EXPECT_TRUE(
      head.EndMessage(tensor, v1::ForwardRequest::kHiddenStatesFieldNumber));
  v1::ForwardRequest got;
  MOE_ASSERT_OK(head.ParseTo(/*read=*/true, &got));
  EXPECT_EQ(got.model(), "ab");
  EXPECT_EQ(got.hidden_states().dtype(), v1::BF16);
}

TEST(MessageHeadTest, TakesNoMoreBytesThanItMay) {
  const std::string bytes(10, 'x');
  const absl::Status refusal = absl::InvalidArgumentError(
      "request: want at most 8 bytes besides the data of tensors, got more");
  v1::ForwardRequest got;
  {
    MessageHead head(bytes.data(), 8);
    EXPECT_TRUE(head.Copy(0, 8));
    EXPECT_FALSE(head.Copy(8, 9));
    EXPECT_EQ(head.ParseTo(/*read=*/false, &got), refusal);
  }
  {
    MessageHead head(bytes.data(), 8);
    EXPECT_TRUE(head.Copy(0, 7));
    EXPECT_FALSE(head.EndMessage(0, 4)) << "tag and length: two bytes";
    EXPECT_EQ(head.ParseTo(/*read=*/false, &got), refusal);
  }
}

TEST(MessageHeadTest, NamesTheMessageThatItIsNot) {
  MessageHead head("", 8);
  v1::RouteRequest route;
  EXPECT_THAT(head.ParseTo(/*read=*/false, &route),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request: want a moe.v1.RouteRequest message"));
  inference::ModelInferRequest infer;
  EXPECT_THAT(head.ParseTo(/*read=*/false, &infer),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request: want an inference.ModelInferRequest message"));
}

}  // namespace
}  // namespace moe

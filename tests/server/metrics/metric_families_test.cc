#include "server/metrics/metric_families.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::SizeIs;

TEST(CodeNameTest, IsTheCanonicalName) {
  EXPECT_EQ(CodeName(absl::StatusCode::kOk), "OK");
  EXPECT_EQ(CodeName(absl::StatusCode::kCancelled), "CANCELLED");
  EXPECT_EQ(CodeName(absl::StatusCode::kResourceExhausted),
            "RESOURCE_EXHAUSTED");
  EXPECT_EQ(CodeName(absl::StatusCode::kUnauthenticated), "UNAUTHENTICATED");
}

TEST(CodeIndexTest, IsThatOfUnknownForWhatIsNotCanonical) {
  EXPECT_EQ(CodeIndex(absl::StatusCode::kOk), 0);
  EXPECT_EQ(CodeIndex(absl::StatusCode::kUnauthenticated), kNumCodes - 1);
  EXPECT_EQ(CodeIndex(static_cast<absl::StatusCode>(17)), 2);
  EXPECT_EQ(CodeIndex(static_cast<absl::StatusCode>(-1)), 2);
}

TEST(BucketsTest, DoubleFromBoundToBound) {
  EXPECT_THAT(SecondsBuckets(), SizeIs(25));
  EXPECT_EQ(SecondsBuckets().front(), 1e-6);
  EXPECT_EQ(SecondsBuckets().back(), 1e-6 * (1 << 24));
  EXPECT_THAT(CountBuckets(), SizeIs(17));
  EXPECT_EQ(CountBuckets().front(), 1);
  EXPECT_EQ(CountBuckets().back(), 65536);
}

}  // namespace
}  // namespace moe

#include "server/metrics/expert_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

TEST(ExpertMetricsTest, NamesAreParsedBack) {
  for (const ExpertMetrics detail :
       {ExpertMetrics::kAuto, ExpertMetrics::kFull, ExpertMetrics::kLayer,
        ExpertMetrics::kOff}) {
    MOE_ASSERT_OK_AND_ASSIGN(const ExpertMetrics parsed,
                             ParseExpertMetrics(ExpertMetricsName(detail)));
    EXPECT_EQ(parsed, detail);
  }
}

TEST(ExpertMetricsTest, OtherNamesAreRefused) {
  EXPECT_THAT(
      ParseExpertMetrics("all"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("want auto, full, layer or off, got \"all\"")));
}

}  // namespace
}  // namespace moe

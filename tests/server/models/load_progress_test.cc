#include "server/models/load_progress.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/common/logging.h"

namespace moe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ProgressTextTest, TellsShareSizesRateAndWhatIsLeft) {
  EXPECT_EQ(
      ProgressText({.done_bytes = 1'200'000'000, .total_bytes = 10'000'000'000},
                   absl::Seconds(2)),
      "12% 1.2 GB of 10 GB, 600 MB/s, 15s left");
  EXPECT_EQ(
      ProgressText({.done_bytes = 5000, .total_bytes = 5000}, absl::Seconds(1)),
      "100% 5 kB of 5 kB, 5 kB/s, 0s left");
}

TEST(ProgressTextTest, SaysNothingOfTheRestBeforeTheFirstByte) {
  EXPECT_EQ(
      ProgressText({.done_bytes = 0, .total_bytes = 2000}, absl::Seconds(4)),
      "0% 0 B of 2 kB, 0 B/s");
}

TEST(ProgressTextTest, HoldsWithoutTimeOrBytes) {
  EXPECT_EQ(
      ProgressText({.done_bytes = 10, .total_bytes = 20}, absl::ZeroDuration()),
      "50% 10 B of 20 B, 10 kB/s, 0s left");
  EXPECT_EQ(
      ProgressText({.done_bytes = 0, .total_bytes = 0}, absl::ZeroDuration()),
      "0% 0 B of 1 B, 0 B/s");
}

TEST(LoadProgressReporterTest, SaysWhatWasLoaded) {
  // Off a terminal, as a capture is: a log line, and no bar.
  ::testing::internal::CaptureStderr();
  LoadProgressReporter reporter("olmoe");
  reporter.Report({.done_bytes = 50, .total_bytes = 100});
  reporter.Done(2'500'000);
  FlushLog();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("loaded olmoe: 2.5 MB of weights in "));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

}  // namespace
}  // namespace moe

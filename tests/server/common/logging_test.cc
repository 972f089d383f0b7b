#include "server/common/logging.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::MatchesRegex;

constexpr char kTime[] = "20..-..-..T..:..:...*Z";

TEST(LogTest, WritesSeverityTimeAndMessageInOrder) {
  ::testing::internal::CaptureStderr();
  LogInfo("loading");
  LogWarning("slow");
  FlushLog();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex(std::string("I") + kTime + " loading\nW" + kTime +
                           " slow\n"));
}

TEST(LogTextTest, WritesTextAsItIs) {
  ::testing::internal::CaptureStderr();
  LogText("\r50%");
  FlushLog();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "\r50%");
}

TEST(PrintErrorTest, HasWrittenAllWhenItReturns) {
  ::testing::internal::CaptureStderr();
  LogInfo("loading");
  PrintError("--model: want NAME=DIR");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex(std::string("I") + kTime +
                           " loading\nerror: --model: want NAME=DIR\n"));
}

}  // namespace
}  // namespace moe

#include "server/common/steady_time.h"

#include <chrono>

#include "gtest/gtest.h"

namespace moe {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using SystemTime = std::chrono::system_clock::time_point;

constexpr SteadyTime kNow = SteadyTime(hours(5));
constexpr SystemTime kSystemNow = SystemTime(hours(400'000));

TEST(ToSteadyTest, KeepsWhatIsLeft) {
  for (const auto left :
       {milliseconds(0), milliseconds(1500), milliseconds(-20)}) {
    const auto steady = ToSteady(kSystemNow + left, kSystemNow, kNow);
    EXPECT_LE(std::chrono::abs(steady - (kNow + left)),
              std::chrono::microseconds(1))
        << left.count();
  }
}

TEST(ToSteadyTest, NeverStaysNever) {
  EXPECT_EQ(ToSteady(SystemTime::max(), kSystemNow, kNow), SteadyTime::max());
  EXPECT_EQ(ToSteady(kSystemNow + hours(24 * 365 * 40), kSystemNow, kNow),
            SteadyTime::max());
}

TEST(ToSteadyTest, LongPastIsPast) {
  EXPECT_LT(ToSteady(SystemTime(), kSystemNow, kNow), kNow);
}

TEST(SteadyClockTest, RealOneDoesNotGoBack) {
  const SteadyClock& clock = SteadyClock::Real();
  const SteadyTime before = std::chrono::steady_clock::now();
  const SteadyTime now = clock.Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, std::chrono::steady_clock::now());
}

}  // namespace
}  // namespace moe

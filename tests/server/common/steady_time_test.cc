#include "server/common/steady_time.h"

#include <chrono>

#include "gtest/gtest.h"

namespace moe {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::hours;

constexpr SteadyTime kNow = SteadyTime(hours(5));

TEST(AfterTest, KeepsWhatIsLeft) {
  for (const double left : {0.0, 1.5, -0.02, 3600.0 * 24 * 365}) {
    const Seconds got = After(kNow, Seconds(left)) - kNow;
    EXPECT_NEAR(got.count(), left, 1e-6);
  }
}

TEST(AfterTest, CenturiesAreNever) {
  for (const double left : {1.1e9, 9.3e9, 1e300}) {
    EXPECT_EQ(After(kNow, Seconds(left)), SteadyTime::max()) << left;
  }
}

TEST(AfterTest, LongPastIsPast) {
  for (const double left : {-1.0, -1e9, -1e300}) {
    EXPECT_LT(After(kNow, Seconds(left)), kNow) << left;
  }
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

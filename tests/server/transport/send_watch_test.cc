#include "server/transport/send_watch.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace moe {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Time is the test's; the watch's own thread would look after an hour.
class SendWatchTest : public ::testing::Test {
 protected:
  SendWatch::Send Begin(const std::string& name) {
    return watch_.Begin([this, name] { ended_.push_back(name); });
  }

  FakeClock clock_;
  bool under_pressure_ = false;
  int stalled_ = 0;
  std::vector<std::string> ended_;
  SendWatch watch_{{.timeout = absl::Hours(12),
                    .timeout_under_pressure = absl::Hours(4),
                    .under_pressure = [this] { return under_pressure_; },
                    .on_stalled = [this] { ++stalled_; },
                    .clock = &clock_}};
};

TEST_F(SendWatchTest, EndsACallThatSendsForTooLong) {
  const auto send = Begin("slow");
  clock_.Advance(minutes(12 * 60) - seconds(1));
  watch_.EndStalled();
  EXPECT_THAT(ended_, IsEmpty());
  clock_.Advance(seconds(1));
  watch_.EndStalled();
  EXPECT_THAT(ended_, ElementsAre("slow"));
  EXPECT_EQ(stalled_, 1);
  watch_.EndStalled();
  EXPECT_EQ(stalled_, 1) << "once";
  watch_.End(send);
}

TEST_F(SendWatchTest, LeavesAloneWhatHasBeenSent) {
  const auto first = Begin("first");
  const auto second = Begin("second");
  watch_.End(first);
  clock_.Advance(minutes(13 * 60));
  watch_.EndStalled();
  EXPECT_THAT(ended_, ElementsAre("second"));
  watch_.End(second);
}

TEST_F(SendWatchTest, EndsAllThatAreTooLateTheOldestFirst) {
  const auto a = Begin("a");
  clock_.Advance(minutes(60));
  const auto b = Begin("b");
  clock_.Advance(minutes(60));
  const auto c = Begin("c");
  clock_.Advance(minutes(11 * 60));
  watch_.EndStalled();
  EXPECT_THAT(ended_, ElementsAre("a", "b"));
  for (const auto& send : {a, b, c}) watch_.End(send);
}

TEST_F(SendWatchTest, IsLessPatientWhileMemoryIsShort) {
  const auto send = Begin("slow");
  clock_.Advance(minutes(4 * 60));
  watch_.EndStalled();
  EXPECT_THAT(ended_, IsEmpty());
  under_pressure_ = true;
  watch_.EndStalled();
  EXPECT_THAT(ended_, ElementsAre("slow"));
  watch_.End(send);
}

TEST_F(SendWatchTest, StopsBeingHastyOncePressureIsGone) {
  const auto a = Begin("a");
  const auto b = Begin("b");
  clock_.Advance(minutes(5 * 60));
  under_pressure_ = true;
  // The first one that goes takes the pressure with it.
  const auto c = watch_.Begin([] {});
  watch_.End(a);
  const auto relief = watch_.Begin([this] { under_pressure_ = false; });
  clock_.Advance(minutes(5 * 60));
  watch_.EndStalled();
  EXPECT_EQ(stalled_, 3) << "b, c and the relief";
  EXPECT_FALSE(under_pressure_);
  const auto later = Begin("later");
  clock_.Advance(minutes(5 * 60));
  watch_.EndStalled();
  EXPECT_THAT(ended_, ElementsAre("b"));
  for (const auto& send : {b, c, relief, later}) watch_.End(send);
}

TEST_F(SendWatchTest, LetsGoOfTheCallAtTheEnd) {
  const auto held = std::make_shared<int>();
  const auto send = watch_.Begin([held] {});
  EXPECT_EQ(held.use_count(), 2);
  watch_.End(send);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(SendWatchTest, CallMayTellOfItsEndFromWithin) {
  SendWatch::Send send;
  send = watch_.Begin([&] { watch_.End(send); });
  clock_.Advance(minutes(13 * 60));
  watch_.EndStalled();
  EXPECT_EQ(stalled_, 1);
}

}  // namespace
}  // namespace moe

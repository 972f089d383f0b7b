#include "server/shards/attempt_plan.h"

#include <chrono>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace moe {
namespace {

using Step = AttemptPlan::Step;
using std::chrono::milliseconds;

constexpr absl::Duration kNeverUnusual = absl::InfiniteDuration();

class AttemptPlanTest : public ::testing::Test {
 protected:
  void Start(absl::Duration usual = kNeverUnusual) {
    plan_.Started(clock_.Now(), usual);
  }
  bool Fail(const absl::Status& status = absl::UnavailableError("gone")) {
    return plan_.Failed(status, clock_.Now());
  }
  Step Now() const { return plan_.At(clock_.Now()); }
  // How long nothing is to be done, if nothing happens.
  std::chrono::nanoseconds Quiet() const { return plan_.next() - clock_.Now(); }

  FakeClock clock_;
  AttemptPlan plan_{clock_.Now() + std::chrono::seconds(10)};
};

TEST_F(AttemptPlanTest, WaitsForAnAttemptUntilTheDeadline) {
  Start();
  EXPECT_EQ(Now(), Step::kWait);
  EXPECT_EQ(Quiet(), std::chrono::seconds(10));
  clock_.Advance(Quiet() - std::chrono::nanoseconds(1));
  EXPECT_EQ(Now(), Step::kWait);
  clock_.Advance(std::chrono::nanoseconds(1));
  EXPECT_EQ(Now(), Step::kGiveUp);
}

TEST_F(AttemptPlanTest, RetriesAtOnceThenAfterLongerAndLonger) {
  for (const milliseconds delay :
       {milliseconds(0), milliseconds(2), milliseconds(10)}) {
    Start();
    ASSERT_TRUE(Fail());
    EXPECT_EQ(Quiet(), delay);
    if (delay > milliseconds(0)) {
      EXPECT_EQ(Now(), Step::kWait);
    }
    clock_.Advance(delay);
    EXPECT_EQ(Now(), Step::kRetry);
  }
  Start();
  EXPECT_EQ(plan_.attempts(), AttemptPlan::kMaxAttempts);
  EXPECT_FALSE(Fail());
}

TEST_F(AttemptPlanTest, DoesNotRetryWhatNoReplicaWouldAnswer) {
  const struct {
    absl::StatusCode code;
    bool goes_on;
  } kCases[] = {
      {absl::StatusCode::kInvalidArgument, false},
      {absl::StatusCode::kUnauthenticated, false},
      {absl::StatusCode::kPermissionDenied, false},
      {absl::StatusCode::kDeadlineExceeded, false},
      {absl::StatusCode::kUnavailable, true},
      {absl::StatusCode::kResourceExhausted, true},
      {absl::StatusCode::kFailedPrecondition, true},
      {absl::StatusCode::kInternal, true},
      {absl::StatusCode::kCancelled, true},
      {absl::StatusCode::kUnknown, true},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(absl::StatusCodeToString(test.code));
    AttemptPlan plan(SteadyTime::max());
    plan.Started(clock_.Now(), kNeverUnusual);
    EXPECT_EQ(plan.Failed(absl::Status(test.code, ""), clock_.Now()),
              test.goes_on);
  }
}

TEST_F(AttemptPlanTest, HedgesWhatTakesUnusuallyLong) {
  Start(absl::Milliseconds(5));
  EXPECT_EQ(Quiet(), milliseconds(5));
  clock_.Advance(milliseconds(4));
  EXPECT_EQ(Now(), Step::kWait);
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(Now(), Step::kHedge);
}

TEST_F(AttemptPlanTest, DoesNotHedgeAboutNoise) {
  Start(absl::Microseconds(20));
  EXPECT_EQ(Quiet(), milliseconds(1));
}

TEST_F(AttemptPlanTest, HedgesUntilThereAreAsManyAttemptsAsThereMayBe) {
  Start(absl::Milliseconds(5));
  while (plan_.attempts() < AttemptPlan::kMaxAttempts) {
    clock_.Advance(milliseconds(5));
    ASSERT_EQ(Now(), Step::kHedge);
    Start(absl::Milliseconds(5));
  }
  clock_.Advance(milliseconds(5));
  EXPECT_EQ(Now(), Step::kWait);
}

TEST_F(AttemptPlanTest, AttemptThatFailsBesideAnotherIsNotRetried) {
  Start(absl::Milliseconds(5));
  clock_.Advance(milliseconds(5));
  Start();
  // Not even if no replica would answer it: the other one may have been sent
  // what this one was not.
  EXPECT_TRUE(Fail(absl::InvalidArgumentError("bad")));
  EXPECT_EQ(Now(), Step::kWait);
  ASSERT_TRUE(Fail());
  // The delay is that of the second failure.
  EXPECT_EQ(Quiet(), milliseconds(2));
}

TEST_F(AttemptPlanTest, FailureTakesThePlaceOfAHedge) {
  Start(absl::Milliseconds(5));
  clock_.Advance(milliseconds(3));
  ASSERT_TRUE(Fail());
  EXPECT_EQ(Now(), Step::kRetry);
}

TEST_F(AttemptPlanTest, NothingIsStartedAfterTheDeadline) {
  Start(absl::Seconds(11));
  EXPECT_EQ(Quiet(), std::chrono::seconds(10));
  clock_.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(Fail());
  EXPECT_EQ(Now(), Step::kGiveUp);
}

TEST_F(AttemptPlanTest, NeedsNoDeadline) {
  AttemptPlan plan(SteadyTime::max());
  plan.Started(clock_.Now(), kNeverUnusual);
  EXPECT_EQ(plan.next(), SteadyTime::max());
  EXPECT_EQ(plan.At(clock_.Now() + std::chrono::hours(24)), Step::kWait);
}

}  // namespace
}  // namespace moe

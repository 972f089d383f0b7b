#include "server/shards/attempt_plan.h"

#include <algorithm>
#include <chrono>

#include "experts/base/check.h"

namespace moe {
namespace {

// Before an attempt that follows a failure; the first is to pass by a replica
// that has gone, the later ones give gRPC time to notice that.
constexpr std::chrono::milliseconds
    kRetryDelays[AttemptPlan::kMaxAttempts - 1] = {
        std::chrono::milliseconds(0), std::chrono::milliseconds(2),
        std::chrono::milliseconds(10)};
// Hedging sooner would be about noise.
constexpr absl::Duration kMinHedgeDelay = absl::Milliseconds(1);

// Whether another replica may answer where this one did not.
bool MayRetry(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    // The deadline is the call's, and has passed for every replica.
    case absl::StatusCode::kDeadlineExceeded:
      return false;
    default:
      return true;
  }
}

}  // namespace

void AttemptPlan::Started(SteadyTime now, absl::Duration usual) {
  MOE_CHECK(attempts_ < kMaxAttempts);
  ++attempts_;
  ++running_;
  next_attempt_ = SteadyTime::max();
  // What would begin after the deadline never begins; nor does the sum
  // overflow.
  if (attempts_ == kMaxAttempts || usual >= absl::FromChrono(deadline_ - now)) {
    return;
  }
  next_attempt_ =
      now + absl::ToChronoNanoseconds(std::max(usual, kMinHedgeDelay));
}

bool AttemptPlan::Failed(const absl::Status& status, SteadyTime now) {
  MOE_CHECK(running_ > 0);
  --running_;
  if (running_ > 0) return true;
  next_attempt_ = SteadyTime::max();
  if (attempts_ == kMaxAttempts || !MayRetry(status)) return false;
  next_attempt_ = now + kRetryDelays[attempts_ - 1];
  return true;
}

AttemptPlan::Step AttemptPlan::At(SteadyTime now) const {
  if (now >= deadline_) return Step::kGiveUp;
  if (now < next_attempt_) return Step::kWait;
  return running_ > 0 ? Step::kHedge : Step::kRetry;
}

SteadyTime AttemptPlan::next() const {
  return std::min(deadline_, next_attempt_);
}

}  // namespace moe

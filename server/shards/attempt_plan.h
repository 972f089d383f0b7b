// When a call to a shard is attempted, attempted again, and given up.

#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/common/steady_time.h"

namespace moe {

// The rules for one call: an attempt that fails is followed by another, one
// that takes unusually long is joined by another (a hedge), and the call ends
// with the first response, with its deadline, or after kMaxAttempts. Decides
// only: it is told the time and what happens, starts nothing and waits for
// nothing.
//
// Thread-safety: by one thread at a time.
class AttemptPlan {
 public:
  // Hedges included.
  static constexpr size_t kMaxAttempts = 4;

  enum class Step {
    kWait,
    kRetry,   // to be attempted now: no attempt is left
    kHedge,   // to be attempted now, beside those that run
    kGiveUp,  // the deadline has passed
  };

  explicit AttemptPlan(SteadyTime deadline) : deadline_(deadline) {}

  // An attempt has been started.
  // usual: how long one may take before it is unusual; infinite if that is not
  // known, or if nothing is to be hedged.
  // Requires: attempts() < kMaxAttempts.
  void Started(SteadyTime now, absl::Duration usual);
  // One of those that run has failed. False if that ends the call: none is left
  // that runs, and none may follow.
  bool Failed(const absl::Status& status, SteadyTime now);

  Step At(SteadyTime now) const;
  // When At may say something else than kWait, if nothing happens until then.
  SteadyTime next() const;

  // Those that have been started.
  size_t attempts() const { return attempts_; }

 private:
  const SteadyTime deadline_;
  size_t attempts_ = 0;
  size_t running_ = 0;
  SteadyTime next_attempt_ = SteadyTime::max();
};

}  // namespace moe

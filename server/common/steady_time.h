// Points in time on a clock that nobody sets, and the clock itself as an object
// that tests can replace.

#pragma once

#include <chrono>

namespace moe {

// Durations are measured with a clock that nobody sets.
using SteadyTime = std::chrono::steady_clock::time_point;

// Tells the time. Thread-safe.
class SteadyClock {
 public:
  virtual ~SteadyClock() = default;
  // Never earlier than what it said before.
  virtual SteadyTime Now() const = 0;

  // The clock of this machine.
  static const SteadyClock& Real();
};

// What the steady clock says when the system's clock, which says `system_now`
// at `now`, says `time`. Centuries from now are SteadyTime::max().
SteadyTime ToSteady(std::chrono::system_clock::time_point time,
                    std::chrono::system_clock::time_point system_now,
                    SteadyTime now);

}  // namespace moe

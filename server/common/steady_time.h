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

// What is that long after `now`; SteadyTime::max() from 30 years on, which
// stand for never.
SteadyTime After(SteadyTime now, std::chrono::duration<double> time);

}  // namespace moe

// A clock that the test sets.

#pragma once

#include <atomic>
#include <chrono>

#include "server/common/steady_time.h"

namespace moe {

// Thread-safe.
class FakeClock final : public SteadyClock {
 public:
  SteadyTime Now() const override {
    return SteadyTime(std::chrono::nanoseconds(since_epoch_.load()));
  }
  void Advance(std::chrono::nanoseconds time) {
    since_epoch_.fetch_add(time.count());
  }

 private:
  std::atomic<std::chrono::nanoseconds::rep> since_epoch_ =
      std::chrono::nanoseconds(std::chrono::hours(1)).count();
};

}  // namespace moe

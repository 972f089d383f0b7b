// Threads that run as soon as they wake up, on CPUs that compute.

#pragma once

#include <cstdint>
#include <optional>

namespace moe {

// While the object lives, threads that the calling thread starts ask the
// scheduler for slices of a tenth of a millisecond, and so does that thread.
// They get no more of a CPU than before but, when they wake up, they interrupt
// one that computes, where they would otherwise wait for its slice and for a
// tick of the clock: up to some milliseconds.
//
// Linux 6.12 and later heed it; elsewhere, or where it is not allowed, it does
// nothing. To be destroyed by the thread that made it.
class ShortSlices {
 public:
  ShortSlices();
  ~ShortSlices();
  ShortSlices(const ShortSlices&) = delete;
  ShortSlices& operator=(const ShortSlices&) = delete;

  // The slice of the calling thread in nanoseconds; none where slices can't be
  // chosen.
  static std::optional<uint64_t> Current();

 private:
  std::optional<uint64_t> before_;  // nanoseconds; none = nothing was changed
};

}  // namespace moe

// Contract checks: a failure is a bug of ours, prints where and what, and
// aborts.

#pragma once

#include <cstdio>
#include <cstdlib>

namespace moe {

[[noreturn]] inline void CheckFailed(const char* file, int line,
                                     const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace moe

// Always on; keep it out of inner loops.
#define MOE_CHECK(condition)          \
  ((condition) ? static_cast<void>(0) \
               : ::moe::CheckFailed(__FILE__, __LINE__, #condition))

// Debug builds only.
#ifdef NDEBUG
#define MOE_DCHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#else
#define MOE_DCHECK(condition) MOE_CHECK(condition)
#endif

// Rounding of whole numbers.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>

namespace moe {

// a / b, rounded up; any a of 0 or more does, numbers from files too.
// Requires: a >= 0, b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// The least multiple of `multiple` that is not less than `value`.
// Requires: value >= 0, multiple > 0; the result fits.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

}  // namespace moe

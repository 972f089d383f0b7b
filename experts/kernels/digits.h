// The arithmetic Digits (see kernels.h): its strips.

#pragma once

#include <cstdint>

namespace moe {

inline constexpr int kDigits = 3;
// Steps of k whose digits lie together: [digit][row][kDigitSteps] bytes.
inline constexpr int64_t kDigitSteps = 64;

// Behind all digits of the strip, [block][row].
struct DigitTerms {
  // The activations of the block are this times (d0 * 2^16 + d1 * 2^8 + d2).
  float scale;
  // The sum of the activations, in the scale of the codes: for zero points.
  float sum;
  // Codes are multiplied as unsigned bytes, plus an offset: minus the offset
  // times the sum of the digits, by which sums of such products start.
  int32_t start[kDigits];
};

inline int64_t DigitBytes(int64_t k) {
  return (k + kDigitSteps - 1) / kDigitSteps * kDigitSteps * kDigits;
}

}  // namespace moe

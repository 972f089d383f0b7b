#include "experts/kernels/interleave.h"

#include <algorithm>

namespace moe {

int64_t InterleavedFloats(int64_t k, int64_t /*block*/) {
  return (k + kStepAlignment - 1) / kStepAlignment * kStepAlignment;
}

void InterleaveRows(const PackRowsArgs& args) {
  // Some lines of each row at a time, so that the strip is written while in the
  // cache.
  constexpr int64_t kSteps = 64;
  const int64_t num_rows = args.num_rows;
  for (int64_t begin = 0; begin < args.k; begin += kSteps) {
    const int64_t end = std::min(begin + kSteps, args.k);
    for (int64_t r = 0; r < num_rows; ++r) {
      const float scale = args.scales != nullptr ? args.scales[r] : 1.0F;
      const float* row = args.rows[r];
      for (int64_t k = begin; k < end; ++k) {
        args.strip[k * num_rows + r] = row[k] * scale;
      }
    }
  }
  std::fill(args.strip + args.k * num_rows,
            args.strip + InterleavedFloats(args.k, args.block) * num_rows,
            0.0F);
}

}  // namespace moe

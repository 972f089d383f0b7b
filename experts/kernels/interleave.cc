#include "experts/kernels/interleave.h"

#include <algorithm>
#include <array>

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

int64_t InterleavedAndSummedFloats(int64_t k, int64_t block) {
  return InterleavedFloats(k, block) + (k + block - 1) / block;
}

void InterleaveAndSumRows(const PackRowsArgs& args) {
  InterleaveRows(args);
  const int64_t num_rows = args.num_rows;
  const int64_t padded_k = InterleavedFloats(args.k, args.block);
  // Each sum is that of eight, of every eighth step: the same bytes with any
  // vectors, and quick to add.
  const int64_t width = kStepAlignment * num_rows;
  std::array<float, kStepAlignment * kMaxStripRows> parts;
  float* sums = args.strip + padded_k * num_rows;
  for (int64_t begin = 0; begin < padded_k; begin += args.block) {
    const int64_t end = std::min(begin + args.block, padded_k);
    std::fill_n(parts.begin(), width, 0.0F);
    for (int64_t k = begin; k < end; k += kStepAlignment) {
      for (int64_t i = 0; i < width; ++i) {
        parts[i] += args.strip[k * num_rows + i];
      }
    }
    for (int64_t half = width / 2; half >= num_rows; half /= 2) {
      for (int64_t i = 0; i < half; ++i) parts[i] += parts[half + i];
    }
    sums = std::copy_n(parts.begin(), num_rows, sums);
  }
}

}  // namespace moe

// What config.json says about quantised tensors, where the tensors alone don't.
//
// Thread-safe: a pure function and plain values.

#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "experts/checkpoint/config.h"

namespace moe {

struct Quantization {
  // FP8 with a scale per block: the block's extents in the stored tensor.
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  // GPTQ: elements per scale along the reduced dimension; absent: whatever
  // follows from the shape of the scales.
  std::optional<int64_t> group_size;
  // GPTQ: the nibble of `qzeros` that stands for a zero point of 8. The first
  // format of these files stores the zero point less one, the second one
  // ("gptq_v2") stores it as it is.
  int gptq_symmetric_zero = 7;
};

// Reads `quantization_config`, at the top or in `text_config`; without one, the
// defaults.
//
// Errors: INVALID_ARGUMENT naming the key.
absl::StatusOr<Quantization> ParseQuantization(const Config& config);

}  // namespace moe

// What config.json says about quantised tensors, where the tensors alone don't.
//
// Thread-safe: a pure function and plain values.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experts/checkpoint/config.h"

namespace moe {

struct Quantization {
  // FP8 with a scale per block: the block's extents in the stored tensor.
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  // GPTQ, AWQ: elements per scale along the reduced dimension; absent: whatever
  // follows from the shape of the scales.
  std::optional<int64_t> group_size;
  // What made the tensors: "gptq", "awq", ...; empty where nothing is said.
  std::string method;
  // AWQ: the kernels that the words are laid out for, in lower case.
  std::string awq_version = "gemm";
  // GPTQ: whether every zero point is the middle.
  bool symmetric = false;
  // GPTQ: the name of the way in which zero points are stored.
  std::string gptq_format = "gptq";

  // GPTQ: how much less than meant zero points are stored, 1 or 0; nothing if
  // the format is none of those that are known.
  std::optional<int> gptq_zero_offset() const;
};

// Reads `quantization_config`, at the top or in `text_config`; without one, the
// defaults.
//
// Errors: INVALID_ARGUMENT naming the key.
absl::StatusOr<Quantization> ParseQuantization(const Config& config);

// Whether what made the tensors, and its options as far as config.json says
// them, are among those whose tensors this project reads. What it doesn't say
// is found when tensors are opened.
//
// Errors: UNIMPLEMENTED naming the key, wanted and got, and the quant_method;
// INVALID_ARGUMENT naming a key whose value has another type.
absl::Status CheckQuantization(const Config& config);

}  // namespace moe

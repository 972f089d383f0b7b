// Finds the matrices and vectors of a checkpoint, whatever precision and layout
// they are stored in, and checks everything that reading them relies on.
//
// Thread-safe: pure functions of a checkpoint.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/stored_matrix.h"

namespace moe {

// Which way the projections of a tensor lie.
enum class StoredOrder : uint8_t {
  kOutIn,  // [out, in], as everything but:
  kInOut,  // [in, out]: GPT-2, Llama 4, gpt-oss
};

// The matrix `name` ("model.layers.0.mlp.up_proj.weight"), [rows, cols] =
// [out, in] whatever the stored order.
absl::StatusOr<StoredMatrix> OpenMatrix(
    const Checkpoint& checkpoint, absl::string_view name, int64_t rows,
    int64_t cols, StoredOrder order = StoredOrder::kOutIn);

// The `size` floats of a vector, such as a bias, stored as [size], [1, size]
// or [size, 1] of F32, BF16, F16 or F64.
//
// Errors: those of Checkpoint::Require.
absl::StatusOr<std::vector<float>> ReadVector(const Checkpoint& checkpoint,
                                              absl::string_view name,
                                              int64_t size);

}  // namespace moe

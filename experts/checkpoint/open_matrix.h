// Finds the matrices and vectors of a checkpoint, whatever precision and layout
// they are stored in, and checks everything that reading them relies on.
//
// Thread-safe: pure functions of a checkpoint.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/stored_matrix.h"

namespace moe {

// Which way a tensor of projections lies. Each of the 4-bit formats has one way
// only: it is not asked there, so that the bf16 and the MXFP4 files of gpt-oss
// open with the same call.
enum class StoredOrder : uint8_t {
  kOutIn,  // [out, in], as everything but:
  kInOut,  // [in, out]: GPT-2, Llama 4, gpt-oss, Qwen3-VL
};

// Opens the matrix `name` as [rows, cols] = [out, in], whatever the stored
// order.
//
// `name` is that of the tensor in an unquantised checkpoint ("X.weight", or
// "X" for a bare parameter). What is there instead of it or beside it says how
// it is stored:
//
//   X.weight                                F32, BF16, F16, F64
//   X.weight F8_E4M3 and one of             one scale, [rows], [rows, 1],
//     X.weight_scale_inv, X.weight_scale,   [1, cols], [rows, groups], or one
//     X.scale                               per block (Quantization)
//   X.weight I8 or U8 [rows, cols/2]        MXFP4 of DeepSeek-V4
//     and a scale F8_E8M0 [rows, cols/32]
//   X_blocks U8 [rows, cols/32, 16]         MXFP4 of gpt-oss; also X.blocks
//     and X_scales U8 [rows, cols/32]
//   X.weight_packed I32 [rows, cols/8],     int4 of compressed-tensors
//     X.weight_scale [rows, groups]
//     [, X.weight_zero_point I32 [rows/8, groups]]
//   X.qweight I32 [cols/8, rows], X.scales  int4 of GPTQ
//     [groups, rows], X.qzeros I32
//     [groups, rows/8] [, X.g_idx]
//   X.qweight I32 [cols, rows/8], X.scales  int4 of AWQ (version "gemm")
//     and X.qzeros as GPTQ
//
// Errors, naming file, tensor, wanted and got: those of Checkpoint::Require;
// INVALID_ARGUMENT if scales or groups don't fit; UNIMPLEMENTED naming what is
// not read: activation order, zero points in a format that is not known, other
// versions of AWQ, other widths (8-bit GPTQ, NVFP4).
absl::StatusOr<StoredMatrix> OpenMatrix(
    const Checkpoint& checkpoint, absl::string_view name, int64_t rows,
    int64_t cols, StoredOrder order = StoredOrder::kOutIn);

// The names of the tensors that OpenMatrix and OpenStack look at for `name`,
// whether they are there or not.
std::vector<std::string> TensorsOf(const Checkpoint& checkpoint,
                                   absl::string_view name);

// Matrices of one shape stored in one tensor, one after the other: the experts
// of a layer. A plain value, like StoredMatrix.
struct StoredStack {
  StoredMatrix first;
  int64_t count = 0;
  int64_t data_step = 0;   // bytes from one matrix to the next
  int64_t scale_step = 0;  // bytes; 0: all share their scales

  // Requires: 0 <= index < count.
  StoredMatrix operator[](int64_t index) const;
};

// As OpenMatrix, for tensors with a dimension [count] before the others; their
// scales have it, too, or are a single one for all.
//
// Errors: those of OpenMatrix; UNIMPLEMENTED for the integer codings.
absl::StatusOr<StoredStack> OpenStack(const Checkpoint& checkpoint,
                                      absl::string_view name, int64_t count,
                                      int64_t rows, int64_t cols,
                                      StoredOrder order = StoredOrder::kOutIn);

// The `size` floats of a vector, such as a bias, stored as [size], [1, size]
// or [size, 1] of F32, BF16, F16 or F64. (The biases of all experts in one
// [experts, size] tensor are a matrix: its rows, and Cols, give the parts.)
//
// Errors: those of Checkpoint::Require.
absl::StatusOr<std::vector<float>> ReadVector(const Checkpoint& checkpoint,
                                              absl::string_view name,
                                              int64_t size);

// Gives back the memory behind a matrix that has been read (see
// MappedFile::DropPages). Requires: opened from `checkpoint`.
void DropPages(const Checkpoint& checkpoint, const StoredMatrix& matrix);

}  // namespace moe

// A matrix of learned parameters as it lies in a checkpoint file: any layout,
// any stored precision.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/dtype.h"

namespace moe {

// How the elements of a StoredMatrix are coded.
enum class StoredCoding : uint8_t {
  kPlain,       // `dtype` elements: F32, BF16, F16
  kScaled,      // F8_E4M3 elements times a scale per block
  kMxfp4,       // 4-bit E2M1, two per byte (low nibble = even column), scale
                // 2^(s-127) per 32 columns
  kInt4Packed,  // 4-bit offset-8 integers, eight per I32 along the columns,
                // scale per group of columns
  kGptq4,  // as kInt4Packed, but packed along the columns of the stored [in/8,
           // out] transpose
};

// A logical [rows, cols] = [out, in] view; the memory belongs to the checkpoint
// and must outlive it.
//
// Thread-safe: Read may be called concurrently.
struct StoredMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  StoredCoding coding = StoredCoding::kPlain;
  DType dtype = DType::kF32;      // of the elements (kPlain, kScaled)
  const uint8_t* data = nullptr;  // first element of logical row 0, column 0
  int64_t row_stride = 0;  // elements between rows: a slice, a transpose or an
                           // interleaving is a choice of
  int64_t col_stride = 1;  // strides and of `data`

  // Scales (all codings but kPlain): scale of element (r, c) is
  // scales[(r + scale_row_offset) / block_rows * scale_row_stride + c /
  // block_cols * scale_col_stride].
  const uint8_t* scales = nullptr;
  DType scale_dtype = DType::kF32;  // F32, BF16, F16, F8_E8M0
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t scale_row_stride = 0;  // elements
  int64_t scale_col_stride = 1;
  int64_t scale_row_offset = 0;

  // Widens row `row`, columns [col, col + out.size()), to float; exact for
  // every coding (a coded value times its scale is rounded once, to float).
  // Requires: the range lies in the matrix.
  void Read(int64_t row, int64_t col, absl::Span<float> out) const;
};

}  // namespace moe

// A matrix of learned parameters as it lies in a checkpoint file: any layout,
// any stored precision.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/dtype.h"
#include "experts/base/matrix_view.h"

namespace moe {

// How the elements of a StoredMatrix are coded.
enum class StoredCoding : uint8_t {
  kPlain,       // `dtype` elements: F32, BF16, F16, F64
  kScaled,      // F8_E4M3 elements times a scale
  kMxfp4,       // 4-bit E2M1 times a power of two, two elements per byte, low
                // nibble first
  kInt4Packed,  // 4-bit integers less 8, times a scale; eight per I32 along the
                // columns, low nibble first
  kGptq4,       // as kInt4Packed, but of the stored [cols/8, rows] transpose:
                // an I32 holds eight columns of one row, and its neighbour the
                // same columns of the next row
};

// How the index along one axis of the matrix selects a scale: index i uses
// number (offset + i * step) / block along that axis, `stride` elements apart.
// The default is one scale for the whole axis.
struct ScaleAxis {
  int64_t offset = 0;
  int64_t step = 1;
  int64_t block = 1;
  int64_t stride = 0;

  int64_t Number(int64_t i) const { return (offset + i * step) / block; }
};

// A logical [rows, cols] = [out, in] view; the memory belongs to the checkpoint
// and must outlive it.
//
// Slices, transposes and interleavings are choices of `data`, strides and scale
// axes: the three methods below derive them from one another, and no other code
// knows about layouts.
//
// Thread-safe: Read may be called concurrently.
struct StoredMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  StoredCoding coding = StoredCoding::kPlain;
  DType dtype = DType::kF32;      // of the elements (kPlain, kScaled)
  const uint8_t* data = nullptr;  // logical row 0, column 0; any alignment
  // Elements between neighbours along an axis. For kGptq4 col_stride is what
  // lies between a group of eight columns and the next group.
  int64_t row_stride = 0;
  int64_t col_stride = 1;

  // Scales (all codings but kPlain): the scale of element (r, c) is
  // scales[scale_rows.Number(r) * scale_rows.stride +
  //        scale_cols.Number(c) * scale_cols.stride].
  const uint8_t* scales = nullptr;  // any alignment
  DType scale_dtype = DType::kF32;  // F32, BF16, F16, F8_E8M0
  ScaleAxis scale_rows = {};
  ScaleAxis scale_cols = {};

  // Widens row `row`, columns [col, col + out.size()), to float; exact for
  // every coding (a coded value times its scale is rounded once, to float; so
  // is F64).
  //
  // Requires: the range lies in the matrix.
  void Read(int64_t row, int64_t col, absl::Span<float> out) const;

  // As Read, of the rectangle out.rows() x out.cols() whose first element is
  // (row, col). Much faster than row by row if the matrix is stored transposed,
  // and never slower; best with 32 rows or more.
  void ReadBlock(int64_t row, int64_t col, Matrix out) const;

  // The codes behind Read, of row `row`, columns [col, col + count): E4M3 a
  // byte each, nibbles two a byte, low one first; a last half byte may hold
  // anything above. Requires: not kPlain; the range lies in the matrix; of
  // nibbles, col is a multiple of 8.
  void ReadCodes(int64_t row, int64_t col, int64_t count, uint8_t* out) const;
  // What the code of an element is multiplied by. Requires: not kPlain.
  float Scale(int64_t row, int64_t col) const;

  // Rows first, first + step, ... of this matrix: a half of concatenated
  // projections (step 1), one of interleaved ones (step 2), or an expert of a
  // flat [experts * rows, cols] tensor.
  //
  // Requires: first >= 0, step >= 1, and all `count` rows lie in the matrix.
  StoredMatrix Rows(int64_t first, int64_t count, int64_t step = 1) const;
  // The same of columns. Requires: kPlain or kScaled.
  StoredMatrix Cols(int64_t first, int64_t count, int64_t step = 1) const;
  // [cols, rows]. Requires: kPlain or kScaled.
  StoredMatrix Transposed() const;

  // What the elements take in the file, scales included: the cost of reading
  // the matrix once.
  int64_t bytes() const;

  // The memory from the first element to the last, and from the first scale to
  // the last; with what lies between them, such as the other half of an
  // interleaved tensor.
  absl::Span<const uint8_t> DataExtent() const;
  absl::Span<const uint8_t> ScaleExtent() const;
};

}  // namespace moe

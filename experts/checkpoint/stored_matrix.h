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
  kPlain,   // `dtype` elements: F32, BF16, F16, F64
  kScaled,  // F8_E4M3 elements times a scale
  kMxfp4,   // 4-bit E2M1 times a power of two
  kInt4,    // 4-bit integers, 0 to 15, less a zero point, times a scale
};

// Where the 4-bit codings have their elements, called nibbles.
enum class NibblePacking : uint8_t {
  kRows,         // a row is a run of bytes, two elements each, low nibble first
  kColumnWords,  // GPTQ, [cols/8, rows]: an I32 holds eight columns of a row,
                 // low nibble first; its neighbour, those of the next row
  kRowWords,     // AWQ (kInt4), [cols, rows/8]: an I32 holds eight rows of a
                 // column, from the low nibble on 0, 2, 4, 6, 1, 3, 5, 7; its
                 // neighbour, the next eight rows
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
  DType dtype = DType::kF32;  // of the elements (kPlain, kScaled)
  NibblePacking packing = NibblePacking::kRows;  // kMxfp4, kInt4
  // Logical row 0, column 0; of kRowWords, row 0 of the stored tensor. Any
  // alignment.
  const uint8_t* data = nullptr;
  // Elements between neighbours along an axis; along one of which words hold
  // eight, between a word's first element and the next word's.
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  // Row r is row first_row + r * row_step of the stored tensor: says which of
  // the eight it is in a word of kRowWords, or of zero points.
  int64_t first_row = 0;
  int64_t row_step = 1;

  // Scales (all codings but kPlain): the scale of element (r, c) is
  // scales[scale_rows.Number(r) * scale_rows.stride +
  //        scale_cols.Number(c) * scale_cols.stride].
  const uint8_t* scales = nullptr;  // any alignment
  DType scale_dtype = DType::kF32;  // F32, BF16, F16, F8_E8M0
  ScaleAxis scale_rows = {};
  ScaleAxis scale_cols = {};

  // Zero points (kInt4): I32 of any alignment that hold those of eight rows of
  // the stored tensor each, in the order of kRowWords if that is the packing,
  // else low nibble first. Null: all are 8, the middle. Columns that share a
  // scale share a zero point.
  const uint8_t* zeros = nullptr;
  int64_t zero_row_stride = 0;  // words from eight rows to the next eight
  int64_t zero_col_stride = 0;  // words from a group of columns to the next
  uint32_t zero_offset = 0;     // to add to each word, modulo 2^32

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
  // What is subtracted from the code before that: 0 to 15. Requires: kInt4.
  int ZeroPoint(int64_t row, int64_t col) const;
  // Whether any zero point may differ from 8.
  bool has_zero_points() const { return zeros != nullptr; }

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

  // What the elements take in the file, scales and zero points included: the
  // cost of reading the matrix once.
  int64_t bytes() const;

  // The memory from the first element to the last, from the first scale to the
  // last, and the same of zero points; with what lies between them, such as the
  // other half of an interleaved tensor. Empty if there are none.
  absl::Span<const uint8_t> DataExtent() const;
  absl::Span<const uint8_t> ScaleExtent() const;
  absl::Span<const uint8_t> ZeroExtent() const;
};

}  // namespace moe

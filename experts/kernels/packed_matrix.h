// One projection, packed for the kernels in one of the weight formats.
//
// A matrix [n, k] (n outputs, k reduced) is cut into panels of kPanelWidth
// outputs. A panel is one stream of bytes: for each group of k steps a header,
// that is the scales of its 16 columns and perhaps their zero points (less 8, a
// signed byte each), then lines of 64 bytes. A line holds 16 columns times
// 4 (f32), 2 (bf16, f16), 1 (int8, fp8) or 1/2 (int4, mxfp4) bytes per step,
// that is 1, 2, 4 or 8 steps of k; the steps of a column lie together in a word
// (but those of f16 and fp8, whose steps are 16 columns each). Of bf16 and
// int8, 16 lines thus are a tile for AMX. The layout is the same on every CPU.
//
// Thread-safe: plain values and pure functions.

#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/dtype.h"
#include "experts/base/weight_format.h"

namespace moe {

// Columns (outputs) of a panel: a cache line of floats, one AVX-512 vector.
inline constexpr int64_t kPanelWidth = 16;
// Bytes of a line.
inline constexpr int64_t kLineBytes = 64;
// Bytes behind a packed matrix that the kernels may read, never use: they must
// be there. What follows in an allocation of several matrices will do.
inline constexpr int64_t kPackedSlack = 64;
// Activations are padded with zeros to a multiple of this many k steps, the
// most that a line of any format holds.
inline constexpr int64_t kStepAlignment = 8;

// What lies in front of a group's lines in a panel: scales, then zero points.
constexpr int64_t GroupHeaderBytes(DType scale_dtype, bool zero_points) {
  return kPanelWidth * (DTypeBytes(scale_dtype) + (zero_points ? 1 : 0));
}

// Shape and coding of a packed matrix.
struct PackedLayout {
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0;  // outputs
  int64_t k = 0;  // reduced dimension
  // Formats with scales only: k steps that share one (a multiple of 32; k or
  // more = one scale per output), and the scale's type: F32, BF16, F16,
  // F8_E8M0.
  int64_t group = 0;
  DType scale_dtype = DType::kF32;
  // int4 only: each group of a column says which code stands for zero, one of
  // 0..16; else that is 8.
  bool zero_points = false;

  // The layout that this project quantises to: int8 in groups of 128 with bf16
  // scales, int4 in groups of 32 with bf16 scales and zero points, fp8 in
  // groups of 128 with f32 scales, mxfp4 in groups of 32 with powers of two.
  // Requires: format is not kAuto; n >= 0, k >= 0.
  static PackedLayout For(WeightFormat format, int64_t n, int64_t k);

  bool has_scales() const { return group > 0; }
  int64_t panels() const { return (n + kPanelWidth - 1) / kPanelWidth; }
  int64_t steps_per_line() const;  // 1, 2, 4 or 8
  // Steps of k whose codes the kernels sum up before they apply the scale: the
  // group, or 128 (at most) of it; 0 without scales.
  int64_t block() const;
  int64_t groups() const;                   // per panel; 0 without scales
  int64_t header_bytes() const;             // of one group of one panel
  int64_t line_offset(int64_t step) const;  // from the panel's start to the
                                            // line that holds this step
  int64_t panel_bytes() const;
  int64_t bytes() const { return panels() * panel_bytes(); }
};

// A packed matrix somewhere in memory, or adjacent panels of one. The first
// gate_proj panel of a gated expert is followed by the first up_proj panel,
// then the second of each, and so on: one matrix with twice the panels of its
// layout.
struct PackedMatrix {
  PackedLayout layout;
  // Aligned to 64 bytes for best speed; kPackedSlack bytes must follow.
  const uint8_t* data = nullptr;
  int64_t panels = 0;
  int64_t first_panel = 0;  // of the matrix: where data begins

  // panel: from where data begins.
  const uint8_t* Panel(int64_t panel) const {
    return data + panel * layout.panel_bytes();
  }
};

// Widens row `row`, columns [col, col + out.size()), of the matrix to pack.
using RowReader =
    absl::FunctionRef<void(int64_t row, int64_t col, absl::Span<float> out)>;

// Packs panel `panel` (rows 16 * panel and following) of a matrix, converting
// or quantising to layout.format. A group that holds a NaN or an infinity gets
// the scale NaN in formats with scales, so that the output is NaN as it should
// be.
//
// dst:      panel_bytes(), overwritten.
// Requires: the layout was made by PackedLayout::For.
// Threads:  safe for different panels at once; calls `read` on its own thread.
void PackPanel(const PackedLayout& layout, RowReader read, int64_t panel,
               uint8_t* dst);

// The same with the kernels of one instruction set; they all write the same
// bytes.
struct Kernels;
void PackPanel(const PackedLayout& layout, RowReader read, int64_t panel,
               uint8_t* dst, const Kernels& kernels);

// Reads the codes of row `row`, columns [col, col + count): e4m3 or two's
// complement int8 bytes; of mxfp4 and int4 (plus 8) two a byte, the first one
// in the lower bits. col is a multiple of 32; what a last upper half holds
// doesn't matter.
using CodeReader = absl::FunctionRef<void(int64_t row, int64_t col,
                                          int64_t count, uint8_t* out)>;
// The scale of the group that holds element (row, col), as float.
using ScaleReader = absl::FunctionRef<float(int64_t row, int64_t col)>;
// Its zero point, in 0..16.
using ZeroPointReader = absl::FunctionRef<int(int64_t row, int64_t col)>;

// As PackPanel, for a matrix that already is coded: carries codes, scales and
// zero points over unchanged. zero_point is asked only where the layout has
// them.
//
// Requires: layout.has_scales(); group, scale_dtype as in the source (a scale
// must be exact in scale_dtype).
void PackCodedPanel(const PackedLayout& layout, CodeReader read,
                    ScaleReader scale, ZeroPointReader zero_point,
                    int64_t panel, uint8_t* dst);

// Widens one element of a packed panel, the slow way: what the kernels compute
// with. column in [0, kPanelWidth).
float UnpackedElement(const PackedLayout& layout, const uint8_t* panel,
                      int64_t column, int64_t step);

}  // namespace moe

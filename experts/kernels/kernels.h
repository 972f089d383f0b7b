// The SIMD kernels of one instruction set, as a table of functions.
//
// Every output element depends on its row and its column of weights alone: it
// is formed by the same operations in the same order for any number of rows,
// any cut of k or of the panels. There are three arithmetics; a table has one
// of them for each weight format:
//
// * Chain. Formats without scales: one chain of fused multiply-adds in
//   ascending order of k, starting at the bias. Formats with scales: for each
//   block of k (PackedLayout::block) such a chain over the codes, starting at
//   zero; one chain more, starting at the bias, adds the blocks' sums times
//   their scales. Zero points are subtracted from such a sum before, times the
//   sum of the block's activations. The same bytes on every instruction set
//   that has FMA.
// * Split. An activation is the exact sum of three bf16 values, which AMX
//   multiplies by bf16 weights, 32 steps of k at a time.
// * Digits. The activations of a block are integers of 24 bits times a power of
//   two, in three signed digits of 8 bits; their products with integer codes
//   add up without any rounding, by VNNI as by AMX. One chain over the blocks,
//   as above.
//
// Thread-safe: tables are constant, kernels are pure functions of their
// arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "experts/base/expert_spec.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// Most rows of a strip, and most panels side by side, over all instruction
// sets.
inline constexpr int kMaxStripRows = 16;
inline constexpr int kMaxPanelsAtOnce = 4;

// A strip: up to max_rows rows of activations as the kernels of a format read
// them.
struct PackRowsArgs {
  const float* const* rows = nullptr;  // [num_rows], of k floats each
  const float* scales = nullptr;  // factors of the rows, [num_rows]; null = 1
  int64_t num_rows = 0;
  int64_t k = 0;
  int64_t block = 0;       // as in PackedLayout
  float* strip = nullptr;  // [num_rows * strip_floats(k, block)], aligned to 64
};
using PackRowsFn = void (*)(const PackRowsArgs& args);

// tile[n][row][column] += sum over k of weight(n, column, k) * a[k][row], with
// the number of panels fixed by the function.
struct MulArgs {
  const uint8_t* panels = nullptr;  // first of the adjacent packed panels
  int64_t panel_stride = 0;         // bytes between them
  int64_t rows = 0;                 // of the strip
  int64_t first_step = 0;           // that `panels` has; at most k_begin
  int64_t k_begin = 0;              // multiple of 128
  int64_t k_end = 0;  // multiple of 128, or the end of the last line
  const float* strip = nullptr;
  int64_t k = 0;          // that the strip was packed with
  float* tile = nullptr;  // [panels][rows][16]
  int64_t group = 0;      // as in PackedLayout; 0 = no scales
  int64_t block = 0;
  DType scale_dtype = DType::kF32;
  bool zero_points = false;
  // With the i-th line that is read of panel n, what is at fetch + n *
  // panel_stride + i * fetch_step is fetched into the cache.
  const uint8_t* fetch = nullptr;
  int64_t fetch_step =
      0;  // bytes; less than a line where strips share the work
  int64_t near_ahead = 0;  // FetchAhead::near
};
using MulFn = void (*)(const MulArgs& args);

// Widens the codes of steps [k_begin, k_end) of a panel to floats [steps][16];
// for formats with scales, each block is preceded by a line of its scales,
// [16], and one of its zero points less 8 where there are any.
struct UnpackArgs {
  const uint8_t* panel = nullptr;
  int64_t k_begin = 0;  // as in MulArgs
  int64_t k_end = 0;
  int64_t group = 0;
  int64_t block = 0;
  DType scale_dtype = DType::kF32;
  bool zero_points = false;
  const uint8_t* fetch = nullptr;  // line i fetches that at fetch + i * 64
  float* out = nullptr;
};
using UnpackFn = void (*)(const UnpackArgs& args);

// In place on z [panels][rows][16], panels of gate_proj and up_proj in turn if
// gated: panel i becomes act(panel 2i) * (panel 2i + 1), clamped and offset as
// the spec says, for i < outputs; else act(panel i).
using ActivateFn = void (*)(const ActivationSpec& spec, bool gated,
                            int64_t outputs, int64_t rows, float* z);

// How many bytes ahead of the multiplication weights are fetched; 0 = the CPU
// does better by itself.
struct FetchAhead {
  // While a single strip goes through them, over all panels that are multiplied
  // at once: memory bandwidth times the latency of a busy memory, with room to
  // spare.
  int64_t far = 16384;
  // Once more, of each panel, from the L2 into the L1 cache.
  int64_t near = 1024;
};

// The kernels for weights of one format.
struct FormatKernels {
  int max_rows = 1;  // of a strip, at most kMaxStripRows
  // Floats that a row takes in a strip.
  int64_t (*strip_floats)(int64_t k, int64_t block) = nullptr;
  PackRowsFn pack_rows = nullptr;
  // A strip of one row, padded with zeros to a multiple of kStepAlignment, is
  // that row as it stands.
  bool row_is_strip = false;
  // mul[rows][log2 panels]: for 1 panel and rows up to max_rows always there;
  // for 2 and 4 panels null where one after the other is faster.
  MulFn mul[kMaxStripRows + 1][3] = {};
  FetchAhead fetch_for_row;   // strips of one row
  FetchAhead fetch_for_rows;  // strips of more
  // Steps of k that many strips multiply in turn: their activations stay in the
  // L2 cache. A multiple of 128.
  int64_t cut_steps = 256;
  // With up to this many rows of one expert, packed weights are multiplied
  // straight from their codes; with more they are unpacked into scratch memory
  // first, and multiplied from there by Kernels::mul_unpacked.
  int fused_rows = 1;
  UnpackFn unpack = nullptr;
};

// Packs `steps` steps of 16 rows: whole lines, and of formats with scales all
// of one group. The same bytes on every instruction set.
inline constexpr int64_t kMaxPackSteps = 128;
struct PackLinesArgs {
  const float* rows = nullptr;  // [16][row_stride], the steps of each row;
                                // readable up to a multiple of 4 steps
  int64_t row_stride = 0;
  int64_t steps = 0;        // at most kMaxPackSteps
  float* scales = nullptr;  // [16], written; NaN where a weight is not finite
  uint8_t* zero_points = nullptr;  // [16], written by int4 only
  uint8_t* lines = nullptr;
};
using PackLinesFn = void (*)(const PackLinesArgs& args);

struct Kernels {
  // "AVX2", "AVX3", "SCALAR", ... as Highway names instruction sets; with some
  // formats' kernels replaced, AVX2 becomes "AVX_VNNI", AVX3 "VNNI" and "AMX".
  absl::string_view isa;
  // All formats have the arithmetic Chain, with FMA.
  bool same_bytes_everywhere = false;
  FormatKernels formats[8];  // by WeightFormat
  // On what `unpack` wrote, and strips as of FormatKernels it belongs to.
  MulFn mul_unpacked[kMaxStripRows + 1][3] = {};
  ActivateFn activate = nullptr;
  PackLinesFn pack_lines[8] = {};  // by WeightFormat
  // For MeasureMachine. fma: chains of FMA in registers, flops_per_step each
  // step; read: reads all bytes. They return something that depends on all of
  // it.
  float (*fma)(int64_t steps) = nullptr;
  double flops_per_step = 0;
  float (*read)(const uint8_t* memory, int64_t bytes) = nullptr;

  const FormatKernels& operator[](WeightFormat format) const {
    return formats[static_cast<int>(format)];
  }
  FormatKernels& operator[](WeightFormat format) {
    return formats[static_cast<int>(format)];
  }
};

// The table for the best instruction set of this CPU.
const Kernels& BestKernels();
// The best one whose results are the same bytes on every CPU with FMA; the
// portable one where there is none.
const Kernels& DeterministicKernels();
// A table per instruction set that was compiled and that this CPU can run, best
// first; the last one is portable.
const std::vector<const Kernels*>& AllKernels();

}  // namespace moe

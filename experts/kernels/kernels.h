// The SIMD kernels of one instruction set, as a table of functions.
//
// Every kernel forms every output element as one chain of fused multiply-adds
// in ascending order of k, and unpacks a weight to the same float (code times
// scale, rounded once). Hence results are the same bytes for any number of
// rows, any cut of k or of the panels, and on every instruction set that has
// FMA.
//
// Thread-safe: tables are constant, kernels are pure functions of their
// arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "experts/expert_spec.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// Most rows of a strip, and most panels side by side, over all instruction
// sets.
inline constexpr int kMaxStripRows = 12;
inline constexpr int kMaxPanelsAtOnce = 4;

// tile[n][row][column] += sum over k of weight(n, column, k) * a[k][row], with
// the number of rows and panels fixed by the function.
struct MulArgs {
  const uint8_t* panels = nullptr;  // first of the adjacent packed panels
  int64_t panel_stride = 0;         // bytes between them
  int64_t k_begin = 0;              // multiple of 128
  int64_t k_end = 0;         // multiple of 128, or the end of the last line
  const float* a = nullptr;  // [k rounded up to 8][rows], padded with zeros
  float* tile = nullptr;     // [panels][rows][16]
  int64_t group = 0;         // as in PackedLayout; 0 = no scales
  int64_t block = 0;
  DType scale_dtype = DType::kF32;
  // With every line that is read, the one this many bytes further on is fetched
  // into the cache.
  int64_t prefetch = 0;
};
using MulFn = void (*)(const MulArgs& args);

// Widens the codes of steps [k_begin, k_end) of a panel to floats [steps][16];
// for formats with scales, each block is preceded by a line of its scales,
// [16].
struct UnpackArgs {
  const uint8_t* panel = nullptr;
  int64_t k_begin = 0;  // as in MulArgs
  int64_t k_end = 0;
  int64_t group = 0;
  int64_t block = 0;
  DType scale_dtype = DType::kF32;
  int64_t prefetch = 0;  // as in MulArgs
  float* out = nullptr;
};
using UnpackFn = void (*)(const UnpackArgs& args);

// In place on z [panels][rows][16], panels of gate_proj and up_proj in turn if
// gated: panel i becomes act(panel 2i) * (panel 2i + 1), clamped and offset as
// the spec says, for i < outputs; else act(panel i).
using ActivateFn = void (*)(const ActivationSpec& spec, bool gated,
                            int64_t outputs, int64_t rows, float* z);

struct Kernels {
  absl::string_view isa;  // "AVX2", "AVX3", "SCALAR", ... as Highway names them
  bool has_fma = false;   // else results differ in the last bits from CPUs with
  int max_rows = 1;       // rows of a strip, at most kMaxStripRows
  // With up to this many rows of one expert, packed weights are multiplied
  // straight from their codes; with more they are unpacked into scratch memory
  // first.
  int fused_rows = 1;
  // mul[format][rows][log2 panels]: for 1 panel and rows up to max_rows always
  // there; for 2 and 4 panels null where one after the other is faster.
  MulFn mul[8][kMaxStripRows + 1][3] = {};
  MulFn mul_unpacked[kMaxStripRows + 1][3] = {};  // on what `unpack` wrote
  UnpackFn unpack[8] = {};
  ActivateFn activate = nullptr;
  // For MeasureMachine. fma: chains of FMA in registers, flops_per_step each
  // step; read: reads all bytes. They return something that depends on all of
  // it.
  float (*fma)(int64_t steps) = nullptr;
  double flops_per_step = 0;
  float (*read)(const uint8_t* memory, int64_t bytes) = nullptr;
};

// The table for the best instruction set of this CPU.
const Kernels& BestKernels();
// A table per instruction set that was compiled and that this CPU can run, best
// first; the last one is portable. For tests and measurements; not while
// another thread calls it.
std::vector<const Kernels*> AllKernels();

}  // namespace moe

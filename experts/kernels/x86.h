// What is beyond Highway's AVX2 and AVX3 on x86: VNNI and AMX.

#pragma once

#include "hwy/base.h"  // HWY_ARCH_X86_64

#if HWY_ARCH_X86_64

// GCC 12 takes the "undefined" vectors in its own AVX-512 header for variables
// that nobody has initialised.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <atomic>
#include <cstdint>

#include "experts/kernels/kernels.h"

// Around the functions of a file that use these instructions; standard headers
// stay outside, so that no inline function of theirs needs such a CPU.
#define MOE_BEFORE_X86()                                                 \
  HWY_PUSH_ATTRIBUTES(                                                   \
      "avx,avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni," \
      "amx-tile,amx-int8,amx-bf16")
#define MOE_AFTER_X86() HWY_POP_ATTRIBUTES

namespace moe {

// What this CPU has beside what Highway's AVX2 and AVX3 stand for.
struct X86Features {
  bool avx_vnni = false;  // of 256 bits
  bool vnni = false;      // with AVX-512
  bool amx = false;       // for int8 and bf16, and the system lets this process
  bool amd = false;       // made by AMD
  bool zen4 = false;      // and of a family that halves vectors of 512 bits
};
// Looks once, and asks the system then to let this process use AMX.
const X86Features& CpuFeatures();

// This makes a table for AVX2 one for more than that.

// int8, int4 and mxfp4 by VNNI. Requires: CpuFeatures().avx_vnni.
void UseAvxVnni(Kernels& kernels);

// These make a table for AVX-512 one for more than that.

// The same, to the same bytes. Requires: CpuFeatures().vnni.
void UseVnni(Kernels& kernels);
// The same by VNNI and by tiles, and bf16. Requires: CpuFeatures().amx.
void UseAmx(Kernels& kernels);
// Part of it: bf16.
void UseSplit(Kernels& kernels);

// Adapts a table for AVX-512, or one of those made of it, to a CPU: how far
// ahead it fetches, how many rows and panels it multiplies at once. The bytes
// of results stay the same. What FormatKernels begins with suits Intel's.
void TuneForCpu(const X86Features& cpu, Kernels& kernels);

// The use of the 8 tile registers: [0, sums) hold sums, the last one holds
// weights, those between hold activations.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // rows:  of the strip
  // steps: bytes of k in a row of activations
  TileShapes(int sums, int64_t strip_rows, int64_t k_bytes) {
    for (int tile = 0; tile < 8; ++tile) {
      const bool activations = tile >= sums && tile < 7;
      row_bytes[tile] = static_cast<uint16_t>(activations ? k_bytes : 64);
      rows[tile] = static_cast<uint8_t>(tile < 7 ? strip_rows : k_bytes / 4);
    }
  }
};

// For compilers, tile instructions don't read memory: what was written before
// this is really there.
inline void WriteAll() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace moe

#endif  // HWY_ARCH_X86_64

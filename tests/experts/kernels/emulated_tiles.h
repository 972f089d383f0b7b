// AMX's tile instructions in software, for CPUs that have no tiles. Included in
// front of a source file, it replaces the intrinsics that the kernels use.

#pragma once

#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <cstdint>

namespace moe::emulated_tiles {

// As Intel's manual, volume 2, defines LDTILECFG, TILEZERO, TILELOADD,
// TILESTORED, TDPBSSD and TDPBF16PS (which take subnormal values for zero and
// fuse each product with its sum). The tiles are the calling thread's.
//
// shapes: 64 bytes; stride: in bytes; c, a, b: numbers of tiles, c += a * b.
void LoadConfig(const void* shapes);
void Zero(int tile);
void Load(int tile, const void* rows, int64_t stride);
void Store(int tile, void* rows, int64_t stride);
void MultiplyBytes(int c, int a, int b);
void MultiplyBF16(int c, int a, int b);

}  // namespace moe::emulated_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
// NOLINTBEGIN(bugprone-reserved-identifier): the names of the intrinsics.
#define _tile_loadconfig(shapes) moe::emulated_tiles::LoadConfig(shapes)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(tile) moe::emulated_tiles::Zero(tile)
#define _tile_loadd(tile, rows, stride) \
  moe::emulated_tiles::Load(tile, rows, stride)
#define _tile_stored(tile, rows, stride) \
  moe::emulated_tiles::Store(tile, rows, stride)
#define _tile_dpbssd(c, a, b) moe::emulated_tiles::MultiplyBytes(c, a, b)
#define _tile_dpbf16ps(c, a, b) moe::emulated_tiles::MultiplyBF16(c, a, b)
// NOLINTEND(bugprone-reserved-identifier)

#endif  // HWY_ARCH_X86_64

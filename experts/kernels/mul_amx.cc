#include "experts/kernels/x86.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/mul_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <algorithm>
#include <utility>

#include "experts/kernels/digits-inl.h"
#include "hwy/highway.h"

// CPUs with AMX have all that Highway's AVX3 asks for.
#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",amx-tile,amx-int8")
namespace moe {
namespace HWY_NAMESPACE {
namespace {

// Weights of a tile: 16 lines of signed bytes.
struct alignas(64) TileLines {
  uint8_t bytes[16 * kLineBytes];
};

template <class Format, int... quad>
HWY_INLINE void StoreSigned(const uint8_t* line, uint8_t* to,
                            Indices<quad...>) {
  const DB db;
  (hn::Store(hn::Sub(Format::template Load<quad, 0>(line),
                     hn::Set(db, Format::kOffset)),
             db, to + quad * kLineBytes),
   ...);
}

// The signed codes of `steps` steps from `line` on, as a tile.
template <class Format>
HWY_INLINE const uint8_t* WeightTile(const uint8_t* line, int64_t num_lines,
                                     int64_t tile_lines, TileLines& scratch) {
  if constexpr (Format::kTileInPlace) {
    if (num_lines == tile_lines) return line;
  }
  using Quads = std::make_integer_sequence<int, Format::kQuads>;
  for (int64_t i = 0; i < tile_lines; ++i) {
    uint8_t* to = scratch.bytes + i * Format::kQuads * kLineBytes;
    if (i < num_lines) {
      StoreSigned<Format>(line + i * kLineBytes, to, Quads());
    } else {
      std::fill_n(to, Format::kQuads * kLineBytes, uint8_t{0});
    }
  }
  WriteAll();
  return scratch.bytes;
}

// The digits of a chunk are [digit][row][kDigitSteps], one run of rows for
// tiles of activations: as few tiles as hold them, of equal heights. The last
// one may reach beyond the chunk; those sums are not used.
//
// There are two sets of tiles for the sums: while one takes up a block, the
// sums of the block before leave the other.
template <int kSet, int kTiles>
HWY_INLINE void ClearSums() {
  if constexpr (kSet == 0) {
    _tile_zero(0);
    if constexpr (kTiles > 1) _tile_zero(1);
    if constexpr (kTiles > 2) _tile_zero(2);
  } else {
    _tile_zero(3);
    if constexpr (kTiles > 1) _tile_zero(4);
    if constexpr (kTiles > 2) _tile_zero(5);
  }
}

template <int kSet, int kTiles>
HWY_INLINE void AddTile(const uint8_t* weights, const uint8_t* digits,
                        int64_t tile_bytes) {
  _tile_loadd(7, weights, kLineBytes);
  _tile_loadd(6, digits, kDigitSteps);
  if constexpr (kSet == 0) {
    _tile_dpbssd(0, 6, 7);
  } else {
    _tile_dpbssd(3, 6, 7);
  }
  if constexpr (kTiles > 1) {
    _tile_loadd(6, digits + tile_bytes, kDigitSteps);
    if constexpr (kSet == 0) {
      _tile_dpbssd(1, 6, 7);
    } else {
      _tile_dpbssd(4, 6, 7);
    }
  }
  if constexpr (kTiles > 2) {
    _tile_loadd(6, digits + 2 * tile_bytes, kDigitSteps);
    if constexpr (kSet == 0) {
      _tile_dpbssd(2, 6, 7);
    } else {
      _tile_dpbssd(5, 6, 7);
    }
  }
}

template <int kTiles>
HWY_INLINE int64_t TileRows(int64_t rows) {
  return (kDigits * rows + kTiles - 1) / kTiles;
}

// A block whose sums are in the tiles of a set.
struct PendingBlock {
  const uint8_t* scales = nullptr;  // of the weights, and zero points
  const DigitTerms* terms = nullptr;
};

template <int kSet, int kTiles>
HWY_INLINE void FinishBlock(const PendingBlock& block, const MulArgs& args) {
  alignas(64) int32_t sums[kTiles * 16][16];  // [digit][row] first
  const int64_t tile_rows = TileRows<kTiles>(args.rows);
  if constexpr (kSet == 0) {
    _tile_stored(0, sums[0], kLineBytes);
    if constexpr (kTiles > 1) _tile_stored(1, sums[tile_rows], kLineBytes);
    if constexpr (kTiles > 2) _tile_stored(2, sums[2 * tile_rows], kLineBytes);
  } else {
    _tile_stored(3, sums[0], kLineBytes);
    if constexpr (kTiles > 1) _tile_stored(4, sums[tile_rows], kLineBytes);
    if constexpr (kTiles > 2) _tile_stored(5, sums[2 * tile_rows], kLineBytes);
  }
  const VF scales = LoadScales<0>(args.scale_dtype, block.scales);
  VF zero_points = hn::Zero(DF());
  if (args.zero_points) {
    zero_points = LoadZeroPoints<0>(block.scales +
                                    kPanelWidth * DTypeBytes(args.scale_dtype));
  }
  const DI di;
  float* out = args.tile;
  for (int64_t r = 0; r < args.rows; ++r, out += kPanelWidth) {
    const VI d0 = hn::Load(di, sums[r]);
    const VI d1 = hn::Load(di, sums[args.rows + r]);
    const VI d2 = hn::Load(di, sums[2 * args.rows + r]);
    const DigitTerms& terms = block.terms[r];
    const VF before = hn::LoadU(DF(), out);
    const VF sum =
        args.zero_points
            ? AddBlock<true>(d0, d1, d2, terms, zero_points, scales, before)
            : AddBlock<false>(d0, d1, d2, terms, zero_points, scales, before);
    hn::StoreU(sum, DF(), out);
  }
}

template <class Format, int kTiles>
class DigitTiles {
 public:
  explicit DigitTiles(const MulArgs& args)
      : args_(args),
        tile_steps_(std::min(args.block, kDigitSteps)),
        strip_(reinterpret_cast<const uint8_t*>(args.strip)),
        terms_(reinterpret_cast<const DigitTerms*>(strip_ + DigitBytes(args.k) *
                                                                args.rows) +
               args.k_begin / args.block * args.rows),
        at_(args, kStepsPerLine,
            GroupHeaderBytes(args.scale_dtype, args.zero_points)),
        fetch_(args.fetch) {}

  void Run() {
    const TileShapes shapes(6, TileRows<kTiles>(args_.rows), tile_steps_);
    WriteAll();
    _tile_loadconfig(&shapes);
    int64_t k = args_.k_begin;
    PendingBlock even = Start<0>(k);
    while (true) {
      if (k == args_.k_end) {
        FinishBlock<0, kTiles>(even, args_);
        break;
      }
      const PendingBlock odd = Start<1>(k);
      FinishBlock<0, kTiles>(even, args_);
      if (k == args_.k_end) {
        FinishBlock<1, kTiles>(odd, args_);
        break;
      }
      even = Start<0>(k);
      FinishBlock<1, kTiles>(odd, args_);
    }
    _tile_release();
  }

 private:
  static constexpr int64_t kStepsPerLine = 4 * Format::kQuads;

  // Multiplies the block that begins at step k, and moves k behind it.
  template <int kSet>
  HWY_INLINE PendingBlock Start(int64_t& k) {
    const int64_t end = std::min(k + args_.block, args_.k_end);
    const int64_t tile_lines = tile_steps_ / kStepsPerLine;
    const int64_t chunk_bytes = kDigits * args_.rows * kDigitSteps;
    const PendingBlock block{at_.scales, terms_};
    ClearSums<kSet, kTiles>();
    for (; k < end; k += tile_steps_) {
      const int64_t num_lines =
          (std::min(tile_steps_, end - k) + kStepsPerLine - 1) / kStepsPerLine;
      for (int64_t i = 0; i < num_lines; ++i, fetch_ += args_.fetch_step) {
        _mm_prefetch(fetch_, _MM_HINT_T0);
      }
      AddTile<kSet, kTiles>(
          WeightTile<Format>(at_.line, num_lines, tile_lines, scratch_),
          strip_ + k / kDigitSteps * chunk_bytes + k % kDigitSteps,
          TileRows<kTiles>(args_.rows) * kDigitSteps);
      at_.line += num_lines * kLineBytes;
    }
    k = end;
    terms_ += args_.rows;
    at_.Advance(k);
    return block;
  }

  const MulArgs& args_;
  const int64_t tile_steps_;
  const uint8_t* strip_;
  const DigitTerms* terms_;
  BlockCursor at_;
  const uint8_t* fetch_;
  TileLines scratch_;
};

template <class Format, int kTiles>
void MulDigits(const MulArgs& args) {
  DigitTiles<Format, kTiles>(args).Run();
}

template <class Format>
void UseTiles(Kernels& kernels) {
  FormatKernels& format = kernels[Format::kFormat];
  format.max_rows = 16;
  format.cut_steps = 512;
  // From how many rows on tiles are faster than VNNI: measured. Codes that must
  // be unpacked into memory need more of them.
  constexpr int kTileRows = Format::kTileInPlace ? 2 : 6;
  for (int rows = kTileRows; rows <= format.max_rows; ++rows) {
    format.mul[rows][0] = kDigits * rows <= 16   ? &MulDigits<Format, 1>
                          : kDigits * rows <= 32 ? &MulDigits<Format, 2>
                                                 : &MulDigits<Format, 3>;
    format.mul[rows][1] = nullptr;
    format.mul[rows][2] = nullptr;
  }
}

}  // namespace

void UseTilesForDigits(Kernels& kernels) {
  UseTiles<Int8Digits>(kernels);
  UseTiles<Int4Digits>(kernels);
  UseTiles<Mxfp4Digits>(kernels);
}

}  // namespace HWY_NAMESPACE

void UseAmx(Kernels& kernels) {
  UseVnni(kernels);
  kernels.isa = "AMX";
  HWY_NAMESPACE::UseTilesForDigits(kernels);
  UseSplit(kernels);
}

}  // namespace moe
HWY_POP_ATTRIBUTES

#endif

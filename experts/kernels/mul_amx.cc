#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <algorithm>

#include "experts/kernels/digits.h"

namespace moe {

MOE_BEFORE_X86()

namespace {

// Weights of a tile: 16 lines of signed bytes.
struct alignas(64) TileLines {
  uint8_t bytes[16 * kLineBytes];
};

// The signed codes of `steps` steps from `line` on, as a tile.
template <class Format>
HWY_INLINE const uint8_t* WeightTile(const uint8_t* line, int64_t num_lines,
                                     int64_t tile_lines, TileLines& scratch) {
  if constexpr (Format::kTileInPlace) {
    if (num_lines == tile_lines) return line;
  }
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(Format::kOffset));
  for (int64_t i = 0; i < tile_lines; ++i) {
    __m512i quads[Format::kQuads];
    if (i < num_lines) {
      Format::Load(line + i * kLineBytes, quads);
    } else {
      for (__m512i& quad : quads) quad = offset;
    }
    for (int q = 0; q < Format::kQuads; ++q) {
      _mm512_store_si512(scratch.bytes + (i * Format::kQuads + q) * kLineBytes,
                         _mm512_sub_epi8(quads[q], offset));
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
  const __m512 scales = LoadGroupScales(args.scale_dtype, block.scales);
  __m512 zero_points = _mm512_setzero_ps();
  if (args.zero_points) {
    zero_points = LoadZeroPoints(block.scales +
                                 kPanelWidth * DTypeBytes(args.scale_dtype));
  }
  float* out = args.tile;
  for (int64_t r = 0; r < args.rows; ++r, out += kPanelWidth) {
    __m512 sum = SumOfDigits(
        _mm512_load_si512(sums[r]), _mm512_load_si512(sums[args.rows + r]),
        _mm512_load_si512(sums[2 * args.rows + r]), block.terms[r].scale);
    if (args.zero_points) {
      sum = _mm512_fnmadd_ps(zero_points, _mm512_set1_ps(block.terms[r].sum),
                             sum);
    }
    _mm512_storeu_ps(out, _mm512_fmadd_ps(sum, scales, _mm512_loadu_ps(out)));
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

MOE_AFTER_X86()

void UseAmx(Kernels& kernels) {
  UseVnni(kernels);
  kernels.isa = "AMX";
  UseTiles<Int8Digits>(kernels);
  UseTiles<Int4Digits>(kernels);
  UseTiles<Mxfp4Digits>(kernels);
  UseSplit(kernels);
}

}  // namespace moe

#endif  // HWY_ARCH_X86_64

#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "experts/kernels/interleave.h"

namespace moe {

MOE_BEFORE_X86()

namespace {

// The arithmetic Split (see kernels.h).

constexpr int kParts = 3;
constexpr int64_t kSplitSteps = 32;  // of a row of a tile
constexpr int64_t kStepsPerLine = 2;

// Up to this many rows the FMA units keep up with the memory, which streams
// better into them than into tiles: measured. Their strips are those of Chain;
// a strip for tiles is [k / 32][part][row][32] bf16.
constexpr int kFmaRows = 2;

int64_t SplitFloats(int64_t k, int64_t /*block*/) {
  return (k + kSplitSteps - 1) / kSplitSteps * kSplitSteps * kParts / 2;
}

// The upper halves of 32 floats.
HWY_INLINE __m512i UpperHalves(__m512 a, __m512 b) {
  const __m512i upper_of_lower = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
  const __m512i upper_of_upper = _mm512_srli_epi32(_mm512_castps_si512(b), 16);
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm512_cvtepi32_epi16(upper_of_lower)),
      _mm512_cvtepi32_epi16(upper_of_upper), 1);
}

HWY_INLINE __m512 Truncate(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x),
                       _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}

// Cutting 16 bits off twice leaves three parts of 8 significant bits, exactly.
void PackSplit(const PackRowsArgs& args) {
  if (args.num_rows <= kFmaRows) return InterleaveRows(args);
  auto* strip = reinterpret_cast<uint16_t*>(args.strip);
  for (int64_t r = 0; r < args.num_rows; ++r) {
    const __m512 factor =
        _mm512_set1_ps(args.scales != nullptr ? args.scales[r] : 1.0F);
    for (int64_t k = 0; k < args.k; k += kSplitSteps) {
      const int64_t steps = std::min(kSplitSteps, args.k - k);
      const auto mask = static_cast<uint32_t>((uint64_t{1} << steps) - 1);
      const float* row = args.rows[r] + k;
      __m512 a = _mm512_mul_ps(
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), row), factor);
      __m512 b = _mm512_mul_ps(
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), row + 16),
          factor);
      for (int part = 0; part < kParts; ++part) {
        _mm512_store_si512(
            strip + ((k / kSplitSteps * kParts + part) * args.num_rows + r) *
                        kSplitSteps,
            UpperHalves(a, b));
        a = _mm512_sub_ps(a, Truncate(a));
        b = _mm512_sub_ps(b, Truncate(b));
      }
    }
  }
}

// What tiles do, by FMA: of each part, a chain over the even steps of 32 and
// one over the odd ones, both from zero; their sum is added to the output.
// Tiles take subnormal values for zero, and so do these.
template <int kR, int kN>
struct FmaMul {
  static constexpr int kPartRows = kParts * kR;
  static constexpr int kChains = kPartRows * kN;
  using Chains = std::make_integer_sequence<int, kChains>;
  using PartRows = std::make_integer_sequence<int, kPartRows>;
  using Panels = std::make_integer_sequence<int, kN>;

  // The activations of 32 steps of the strip, [part][step][row].
  struct alignas(64) Activations {
    float parts[kParts][kSplitSteps * kR];
  };
  static HWY_INLINE void Split(const float* strip, int64_t floats,
                               Activations& out) {
    for (int64_t i = 0; i < kSplitSteps * kR; i += 16) {
      const int64_t count = std::clamp<int64_t>(floats - i, 0, 16);
      const auto mask = static_cast<__mmask16>((1U << count) - 1);
      __m512 rest = _mm512_maskz_loadu_ps(mask, strip + i);
      for (auto& part : out.parts) {
        const __m512 upper = Truncate(rest);
        _mm512_store_ps(part + i, upper);
        rest = _mm512_sub_ps(rest, upper);
      }
    }
  }

  template <int n, int... i>
  static HWY_INLINE void AddPanel(const uint8_t* line, const float* a,
                                  __m512 (&even)[kChains],
                                  __m512 (&odd)[kChains],
                                  std::integer_sequence<int, i...>) {
    const __m512i words = _mm512_loadu_si512(line);
    const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    const __m512 second = Truncate(_mm512_castsi512_ps(words));
    ((even[i * kN + n] =
          _mm512_fmadd_ps(_mm512_set1_ps(a[i / kR * kSplitSteps * kR + i % kR]),
                          first, even[i * kN + n])),
     ...);
    ((odd[i * kN + n] = _mm512_fmadd_ps(
          _mm512_set1_ps(a[i / kR * kSplitSteps * kR + kR + i % kR]), second,
          odd[i * kN + n])),
     ...);
  }
  template <int... n>
  static HWY_INLINE void AddLine(const uint8_t* line, const uint8_t* fetch,
                                 int64_t stride, const float* a,
                                 __m512 (&even)[kChains],
                                 __m512 (&odd)[kChains],
                                 std::integer_sequence<int, n...>) {
    (_mm_prefetch(fetch + n * stride, _MM_HINT_T1), ...);
    (AddPanel<n>(line + n * stride, a, even, odd, PartRows()), ...);
  }

  template <int... i>
  static HWY_INLINE void Clear(__m512 (&chains)[kChains],
                               std::integer_sequence<int, i...>) {
    ((chains[i] = (static_cast<void>(i), _mm512_setzero_ps())), ...);
  }
  // Chain i belongs to part i / kN / kR, row i / kN % kR and panel i % kN.
  template <int... i>
  static HWY_INLINE void AddToTile(const __m512 (&even)[kChains],
                                   const __m512 (&odd)[kChains], float* tile,
                                   std::integer_sequence<int, i...>) {
    const auto add = [tile](int at, __m512 sum) {
      float* out = tile + (at % kN * kR + at / kN % kR) * kPanelWidth;
      _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum));
    };
    (add(i, _mm512_add_ps(even[i], odd[i])), ...);
  }

  // Not inlined, so that no arithmetic leaves the lines between which
  // subnormal values are zeros.
  static HWY_NOINLINE void RunFlushed(const MulArgs& args) {
    const float* strip = args.strip + args.k_begin * kR;
    const uint8_t* lines =
        args.panels + args.k_begin / kStepsPerLine * kLineBytes;
    const uint8_t* fetch = args.fetch;
    for (int64_t k = args.k_begin; k < args.k_end; k += kSplitSteps) {
      const int64_t steps = std::min(kSplitSteps, args.k_end - k);
      Activations a;
      Split(strip, steps * kR, a);
      __m512 even[kChains];
      __m512 odd[kChains];
      Clear(even, Chains());
      Clear(odd, Chains());
      for (int64_t step = 0; step < steps; step += kStepsPerLine) {
        AddLine(lines, fetch, args.panel_stride, a.parts[0] + step * kR, even,
                odd, Panels());
        lines += kLineBytes;
        fetch += args.fetch_step;
      }
      AddToTile(even, odd, args.tile, Chains());
      strip += kSplitSteps * kR;
    }
  }

  static void Run(const MulArgs& args) {
    constexpr unsigned kFlush = 0x8040;  // FTZ and DAZ
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlush);
    RunFlushed(args);
    _mm_setcsr(before);
  }
};

// Weights of a tile: 16 lines.
struct alignas(64) TileLines {
  uint8_t bytes[16 * kLineBytes];
};

template <int kPanels>
void MulTiles(const MulArgs& args) {
  constexpr int64_t kTileBytes = 16 * kLineBytes;
  const TileShapes shapes(4, args.rows, kLineBytes);
  WriteAll();
  _tile_loadconfig(&shapes);
  float* tile = args.tile;
  const int64_t tile_floats = args.rows * kPanelWidth;
  _tile_loadd(0, tile, kLineBytes);
  if constexpr (kPanels > 1) _tile_loadd(1, tile + tile_floats, kLineBytes);
  if constexpr (kPanels > 2) {
    _tile_loadd(2, tile + 2 * tile_floats, kLineBytes);
    _tile_loadd(3, tile + 3 * tile_floats, kLineBytes);
  }
  const int64_t part_bytes = args.rows * kLineBytes;
  const auto* strip = reinterpret_cast<const uint8_t*>(args.strip) +
                      args.k_begin / kSplitSteps * kParts * part_bytes;
  const uint8_t* lines =
      args.panels + args.k_begin / kStepsPerLine * kLineBytes;
  TileLines last[kPanels];
  int64_t stride = args.panel_stride;
  const uint8_t* fetch = args.fetch;
  for (int64_t k = args.k_begin; k < args.k_end; k += kSplitSteps) {
    const int64_t num_lines =
        (std::min(kSplitSteps, args.k_end - k) + kStepsPerLine - 1) /
        kStepsPerLine;
    if (num_lines < 16) {
      std::memset(last, 0, sizeof(last));
      for (int p = 0; p < kPanels; ++p) {
        std::memcpy(last[p].bytes, lines + p * stride, num_lines * kLineBytes);
      }
      lines = last[0].bytes;
      stride = sizeof(TileLines);
      WriteAll();
    }
    for (int i = 0; i < 16; ++i, fetch += args.fetch_step) {
      for (int p = 0; p < kPanels; ++p) {
        _mm_prefetch(fetch + p * args.panel_stride, _MM_HINT_T0);
      }
    }
    _tile_loadd(4, strip, kLineBytes);
    _tile_loadd(5, strip + part_bytes, kLineBytes);
    _tile_loadd(6, strip + 2 * part_bytes, kLineBytes);
    _tile_loadd(7, lines, kLineBytes);
    _tile_dpbf16ps(0, 4, 7);
    _tile_dpbf16ps(0, 5, 7);
    _tile_dpbf16ps(0, 6, 7);
    if constexpr (kPanels > 1) {
      _tile_loadd(7, lines + stride, kLineBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(1, 5, 7);
      _tile_dpbf16ps(1, 6, 7);
    }
    if constexpr (kPanels > 2) {
      _tile_loadd(7, lines + 2 * stride, kLineBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(2, 5, 7);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, lines + 3 * stride, kLineBytes);
      _tile_dpbf16ps(3, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
      _tile_dpbf16ps(3, 6, 7);
    }
    strip += kParts * part_bytes;
    lines += kTileBytes;
  }
  _tile_stored(0, tile, kLineBytes);
  if constexpr (kPanels > 1) _tile_stored(1, tile + tile_floats, kLineBytes);
  if constexpr (kPanels > 2) {
    _tile_stored(2, tile + 2 * tile_floats, kLineBytes);
    _tile_stored(3, tile + 3 * tile_floats, kLineBytes);
  }
  _tile_release();
}

}  // namespace

MOE_AFTER_X86()

void UseSplit(Kernels& kernels) {
  FormatKernels& bf16 = kernels[WeightFormat::kBF16];
  bf16 = FormatKernels();
  bf16.max_rows = 16;
  bf16.cut_steps = 512;
  bf16.strip_floats = &SplitFloats;
  bf16.pack_rows = &PackSplit;
  bf16.row_is_strip = true;
  bf16.fused_rows = std::numeric_limits<int>::max();
  bf16.mul[1][0] = &FmaMul<1, 1>::Run;
  bf16.mul[1][1] = &FmaMul<1, 2>::Run;
  bf16.mul[1][2] = &FmaMul<1, 4>::Run;
  bf16.mul[2][0] = &FmaMul<2, 1>::Run;
  bf16.mul[2][1] = &FmaMul<2, 2>::Run;

  for (int rows = kFmaRows + 1; rows <= bf16.max_rows; ++rows) {
    bf16.mul[rows][0] = &MulTiles<1>;
    bf16.mul[rows][1] = &MulTiles<2>;
    bf16.mul[rows][2] = &MulTiles<4>;
  }
}

}  // namespace moe

#endif  // HWY_ARCH_X86_64

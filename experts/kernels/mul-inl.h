// The multiplication kernels, compiled once per instruction set. Include only
// below hwy/foreach_target.h.

#if defined(MOE_EXPERTS_KERNELS_MUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_EXPERTS_KERNELS_MUL_INL_H_
#undef MOE_EXPERTS_KERNELS_MUL_INL_H_
#else
#define MOE_EXPERTS_KERNELS_MUL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "experts/base/dtype.h"
#include "experts/kernels/block_cursor.h"
#include "experts/kernels/interleave.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/x86.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPanelWidth>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

// Vectors across the columns of a panel.
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kVectors = static_cast<int>(kPanelWidth) / kLanes;

// kRows: most rows of a strip. Fits: which numbers of rows and panels to
// multiply at once, of weights that are floats as they stand or must be
// widened: what the registers hold and what was measured to be fastest.
// kFusedRows: see FormatKernels::fused_rows.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
inline constexpr int kRows = 2;
inline constexpr int kFusedRows = 8;
constexpr bool Fits(int /*rows*/, int panels, bool /*widened*/) {
  return panels == 1;
}
#elif HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline constexpr int kRows = 12;
inline constexpr int kFusedRows = 1 << 30;
constexpr bool Fits(int rows, int panels, bool /*widened*/) {
  return panels == 1 || (panels == 2 ? rows <= 2 || rows > 6 : rows <= 6);
}
#else
inline constexpr int kRows = 6;  // AVX2: 12 of 16 registers hold sums
inline constexpr int kFusedRows = 12;
constexpr bool Fits(int rows, int panels, bool widened) {
  return panels == 1 || (panels == 2 && rows <= (widened ? 2 : 3));
}
#endif

// What each format does: kSteps steps of k in a line; Get<step, vector> unpacks
// columns [vector * kLanes, +kLanes) of one step, times kCodeScale if there are
// scales. Where there is kHalfBytes, ToHalves makes that many bytes of halves
// of a line first, and Get takes those: AVX2 turns halves that lie in memory
// into floats by a single instruction.
struct F32Format {
  static constexpr WeightFormat kFormat = WeightFormat::kF32;
  static constexpr int kSteps = 1;
  static constexpr bool kScaled = false;
  static constexpr bool kUnpacked = false;
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    return hn::LoadU(DF(),
                     reinterpret_cast<const float*>(line) + vector * kLanes);
  }
};

// What Unpack makes of formats with scales: a line of f32 scales per block,
// then a line of f32 codes per step.
struct UnpackedFormat : F32Format {
  static constexpr bool kScaled = true;
  static constexpr bool kUnpacked = true;
  static constexpr float kCodeScale = 1.0F;
};

struct BF16Format {
  static constexpr WeightFormat kFormat = WeightFormat::kBF16;
  static constexpr int kSteps = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kUnpacked = false;
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const DU du;
#if HWY_TARGET == HWY_AVX2
    // Sums hold 12 of 16 registers. Words kept for the other step would push
    // some out: to the compiler, this is another address for each step.
    asm("" : "+r"(line) : "i"(step));
#endif
    const VU words = hn::LoadU(
        du, reinterpret_cast<const uint32_t*>(line) + vector * kLanes);
    if constexpr (step == 0) {
      return hn::BitCast(DF(), hn::ShiftLeft<16>(words));
    } else {
#if HWY_TARGET == HWY_AVX2  // and so would a mask
      return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::ShiftRight<16>(words)));
#else
      return hn::BitCast(DF(), hn::And(words, hn::Set(du, 0xffff0000U)));
#endif
    }
  }
};

struct F16Format {
  static constexpr WeightFormat kFormat = WeightFormat::kF16;
  static constexpr int kSteps = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kUnpacked = false;
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const hn::Rebind<uint16_t, DF> du16;
    const hn::Rebind<hwy::float16_t, DF> df16;
    const auto halves =
        hn::LoadU(du16, reinterpret_cast<const uint16_t*>(line) +
                            step * kPanelWidth + vector * kLanes);
    return hn::PromoteTo(DF(), hn::BitCast(df16, halves));
  }
};

// A word of four codes, loaded so that the wanted one is its upper byte. In
// front of the first line of a group there are scales.
struct Int8Format {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kSteps = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kUnpacked = false;
  static constexpr float kCodeScale = 1.0F;
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const DI di;
    const auto words =
        hn::LoadU(di, reinterpret_cast<const int32_t*>(
                          line + vector * kLanes * 4 + step - 3));
    return hn::ConvertTo(DF(), hn::ShiftRight<24>(words));
  }
};

// An E4M3 code, moved to where an IEEE half has its exponent and mantissa, is
// the half of the value times 2^-8, subnormal values included.
struct Fp8Format {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr int kSteps = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kUnpacked = false;
  static constexpr float kCodeScale = 0x1p-8F;
#if HWY_TARGET == HWY_AVX2
  static constexpr int kHalfBytes = kSteps * 2 * static_cast<int>(kPanelWidth);
  static HWY_INLINE void ToHalves(const uint8_t* line, uint8_t* halves) {
    const hn::Repartition<int16_t, DF> di16;
    const hn::Rebind<int8_t, decltype(di16)> di8;
    for (int step = 0; step < kSteps; ++step) {
      const auto codes = hn::PromoteTo(
          di16, hn::LoadU(di8, reinterpret_cast<const int8_t*>(line) +
                                   step * kPanelWidth));
      hn::Store(hn::And(hn::ShiftLeft<7>(codes),
                        hn::Set(di16, static_cast<int16_t>(0xbf80))),
                di16, reinterpret_cast<int16_t*>(halves) + step * kPanelWidth);
    }
  }
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* halves) {
    return F16Format::Get<step, vector>(halves);
  }
#elif HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const hn::Repartition<int16_t, DF> di16;
    const hn::Rebind<int8_t, decltype(di16)> di8;
    const auto codes = hn::PromoteTo(
        di16, hn::LoadU(di8, reinterpret_cast<const int8_t*>(line) +
                                 step / 2 * 2 * kPanelWidth));
    const auto halves = hn::And(hn::ShiftLeft<7>(codes),
                                hn::Set(di16, static_cast<int16_t>(0xbf80)));
    if constexpr (step % 2 == 0) {
      return VF{_mm512_cvtph_ps(_mm512_castsi512_si256(halves.raw))};
    } else {
      return VF{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves.raw, 1))};
    }
  }
#else
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const hn::Rebind<int8_t, DF> di8;
    const hn::Rebind<int16_t, DF> di16;
    const hn::Rebind<hwy::float16_t, DF> df16;
    const auto codes = hn::PromoteTo(
        di16, hn::LoadU(di8, reinterpret_cast<const int8_t*>(line) +
                                 step * kPanelWidth + vector * kLanes));
    const auto halves = hn::And(hn::ShiftLeft<7>(codes),
                                hn::Set(di16, static_cast<int16_t>(0xbf80)));
    return hn::PromoteTo(DF(), hn::BitCast(df16, halves));
  }
#endif
};

// The words of eight nibbles, one per column, from the byte on that holds
// nibble `step`: what is beyond the word of a column belongs to its neighbour
// or lies behind the line. Loading anew is cheaper than shifting.
template <int step, int vector>
HWY_INLINE VU WordsFromByte(const uint8_t* line) {
  return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(
                             line + vector * kLanes * 4 + step / 2));
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// One instruction looks 16 floats up by the low 4 bits of each index; Highway's
// lookup wants the other bits cleared first.
template <int step, int vector>
HWY_INLINE VF LookUpNibble(const uint8_t* line, const float* table) {
  VU nibbles = WordsFromByte<step, vector>(line);
  if constexpr (step % 2 == 1) nibbles = hn::ShiftRight<4>(nibbles);
  return VF{_mm512_permutexvar_ps(nibbles.raw, hn::LoadU(DF(), table).raw)};
}
#endif

struct Int4Format {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kSteps = 8;
  static constexpr bool kScaled = true;
  static constexpr bool kUnpacked = false;
  static constexpr float kCodeScale = 1.0F;
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    if constexpr (true) {
      alignas(64) static constexpr float kValues[16] = {
          -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
      return LookUpNibble<step, vector>(line, kValues);
    }
#endif
    // A nibble among the mantissa bits of 2^e is a float without conversion.
    const DU du;
    constexpr int kShift = step % 4 * 4;
    constexpr uint32_t kExponent = 23 - kShift;
    constexpr float kPower = static_cast<float>(1U << kExponent);
    const VU words = WordsFromByte<step / 4 * 4, vector>(line);
    const VU bits = hn::OrAnd(hn::Set(du, (127 + kExponent) << 23), words,
                              hn::Set(du, 0xfU << kShift));
    return hn::Sub(hn::BitCast(DF(), bits), hn::Set(DF(), kPower + 8.0F));
  }
};

struct Mxfp4Format {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  static constexpr int kSteps = 8;
  static constexpr bool kScaled = true;
  static constexpr bool kUnpacked = false;
  static constexpr float kCodeScale = 1.0F;
#if HWY_TARGET == HWY_AVX2
  // The halves of all values are zero but for their upper bytes, which are
  // looked up.
  static constexpr int kHalfBytes = kSteps * 2 * static_cast<int>(kPanelWidth);
  static HWY_INLINE void ToHalves(const uint8_t* line, uint8_t* halves) {
    const hn::Repartition<uint8_t, DF> db;
    const DU du;
    alignas(16) static constexpr uint8_t kBytesOfColumns[16] = {
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    alignas(32) static constexpr int32_t kWords[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    alignas(16) static constexpr uint8_t kUpperBytes[16] = {
        0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
        0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    const auto table = hn::LoadDup128(db, kUpperBytes);
    const auto low = hn::Set(db, 0xf);
    const auto zero = hn::Zero(db);
    for (int v = 0; v < kVectors; ++v) {
      // The first bytes of all columns side by side, then the second ones.
      const auto by_column = hn::LoadU(db, line + v * kLanes * 4);
      const VU bytes = hn::TableLookupLanes(
          hn::BitCast(du, hn::TableLookupBytes(
                              by_column, hn::LoadDup128(db, kBytesOfColumns))),
          hn::SetTableIndices(du, kWords));
      const auto even =
          hn::TableLookupBytes(table, hn::And(hn::BitCast(db, bytes), low));
      const auto odd = hn::TableLookupBytes(
          table, hn::And(hn::BitCast(db, hn::ShiftRight<4>(bytes)), low));
      uint8_t* to = halves + v * kHalfBytes / kVectors;
      hn::Store(hn::InterleaveLower(db, zero, even), db, to);
      hn::Store(hn::InterleaveUpper(db, zero, even), db, to + 32);
      hn::Store(hn::InterleaveLower(db, zero, odd), db, to + 64);
      hn::Store(hn::InterleaveUpper(db, zero, odd), db, to + 96);
    }
  }
  // That leaves the steps in the order 0, 4, 2, 6, 1, 5, 3, 7.
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* halves) {
    constexpr int kAt = step % 2 * 4 + step / 2 % 2 * 2 + step / 4;
    return F16Format::Get<0, kAt>(halves + vector * kHalfBytes / kVectors);
  }
#elif HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    alignas(64) static constexpr float kValues[16] = {
        0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    return LookUpNibble<step, vector>(line, kValues);
  }
#else
  template <int step, int vector>
  static HWY_INLINE VF Get(const uint8_t* line) {
    const DU du;
    const VU nibbles =
        hn::ShiftRight<step % 2 * 4>(WordsFromByte<step, vector>(line));
    const VU sign =
        hn::And(SignAtTop<step, vector>(line), hn::Set(du, 0x80000000U));
    // With the exponent bias of float, right for codes 2 to 7; codes 0 and 1
    // come as 0.5 and 0.75 instead of 0 and 0.5.
    const VU code = hn::And(nibbles, hn::Set(du, 7U));
    const VF normal = hn::BitCast(
        DF(), hn::Add(hn::ShiftLeft<22>(code), hn::Set(du, 0x3f000000U)));
    const VF half = hn::Set(DF(), 0.5F);
    const VF excess = hn::Sub(normal, half);
    const VU magnitude =
        hn::BitCast(du, hn::IfThenElse(hn::Lt(normal, hn::Set(DF(), 1.0F)),
                                       hn::Add(excess, excess), normal));
    return hn::BitCast(DF(), hn::Xor(magnitude, sign));
  }

 private:
  template <int step, int vector>
  static HWY_INLINE VU SignAtTop(const uint8_t* line) {
    const VU words = hn::LoadU(
        DU(), reinterpret_cast<const uint32_t*>(line) + vector * kLanes);
    if constexpr (step == 7) {
      return words;
    } else {
      return hn::ShiftLeft<28 - 4 * step>(words);
    }
  }
#endif
};

// The scales of columns [vector * kLanes, +kLanes).
template <int vector>
HWY_INLINE VF LoadScales(DType dtype, const uint8_t* scales) {
  const DU du;
  switch (dtype) {
    case DType::kBF16: {
      const hn::Rebind<uint16_t, DF> du16;
      return hn::BitCast(
          DF(),
          hn::ShiftLeft<16>(hn::PromoteTo(
              du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(scales) +
                                      vector * kLanes))));
    }
    case DType::kF16: {
      const hn::Rebind<uint16_t, DF> du16;
      const hn::Rebind<hwy::float16_t, DF> df16;
      return hn::PromoteTo(
          DF(),
          hn::BitCast(
              df16, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(scales) +
                                        vector * kLanes)));
    }
    case DType::kF8E8M0: {
      const hn::Rebind<uint8_t, DF> du8;
      const VU code =
          hn::PromoteTo(du, hn::LoadU(du8, scales + vector * kLanes));
      VU bits = hn::ShiftLeft<23>(code);
      bits = hn::IfThenElse(hn::Eq(code, hn::Zero(du)),
                            hn::Set(du, 0x00400000U), bits);
      bits = hn::IfThenElse(hn::Eq(code, hn::Set(du, 255U)),
                            hn::Set(du, 0x7fc00000U), bits);
      return hn::BitCast(DF(), bits);
    }
    default:
      return hn::LoadU(
          DF(), reinterpret_cast<const float*>(scales) + vector * kLanes);
  }
}

// The zero points of columns [vector * kLanes, +kLanes), less 8.
template <int vector>
HWY_INLINE VF LoadZeroPoints(const uint8_t* zero_points) {
  const hn::Rebind<int8_t, DF> di8;
  const auto bytes = hn::LoadU(
      di8, reinterpret_cast<const int8_t*>(zero_points) + vector * kLanes);
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), bytes));
}

template <class Format>
constexpr int HalfBytes() {
  if constexpr (requires { Format::kHalfBytes; }) {
    return Format::kHalfBytes;
  } else {
    return 1;  // not used
  }
}

// Vectors live in arrays that only ever see constant indices: that way the
// compiler keeps them in registers.
template <int... i>
using Indices = std::integer_sequence<int, i...>;

// The kernel for kR rows and kN panels.
template <class Format, int kR, int kN>
struct Mul {
  static constexpr int kWide = kN * kVectors;  // vectors across the columns
  static constexpr int kSums = kR * kWide;
  static constexpr bool kZeroPoints =
      Format::kFormat == WeightFormat::kInt4 || Format::kUnpacked;
  using Wide = std::make_integer_sequence<int, kWide>;
  using Rows = std::make_integer_sequence<int, kR>;
  using Sums = std::make_integer_sequence<int, kSums>;

  struct Panels {
    const uint8_t* first;
    int64_t stride;
    HWY_INLINE const uint8_t* operator[](int n) const {
      return first + n * stride;
    }
  };

  template <int step, int w>
  static HWY_INLINE VF Weight(Panels lines) {
    return Format::template Get<step, w % kVectors>(lines[w / kVectors]);
  }

  template <int w, int... r>
  static HWY_INLINE void AddColumn(VF weight, const VF (&a)[kR],
                                   VF (&sums)[kSums], Indices<r...>) {
    ((sums[r * kWide + w] = hn::MulAdd(a[r], weight, sums[r * kWide + w])),
     ...);
  }
  template <int step, int... w, int... r>
  static HWY_INLINE void StepByColumn(Panels lines, const float* a,
                                      VF (&sums)[kSums], Indices<w...>,
                                      Indices<r...> rows) {
    const VF broadcast[kR] = {hn::Set(DF(), a[step * kR + r])...};
    (AddColumn<w>(Weight<step, w>(lines), broadcast, sums, rows), ...);
  }

  template <int r, int... w>
  static HWY_INLINE void AddRow(VF a, const VF (&weights)[kWide],
                                VF (&sums)[kSums], Indices<w...>) {
    ((sums[r * kWide + w] = hn::MulAdd(a, weights[w], sums[r * kWide + w])),
     ...);
  }
  template <int step, int... w, int... r>
  static HWY_INLINE void StepByRow(Panels lines, const float* a,
                                   VF (&sums)[kSums], Indices<w...> wide,
                                   Indices<r...>) {
    const VF weights[kWide] = {Weight<step, w>(lines)...};
    (AddRow<r>(hn::Set(DF(), a[step * kR + r]), weights, sums, wide), ...);
  }

  // What Weight takes, of `lines`.
  template <int... n>
  static HWY_INLINE Panels Prepare(Panels lines, uint8_t* halves,
                                   Indices<n...>) {
    if constexpr (requires { Format::kHalfBytes; }) {
      (Format::ToHalves(lines[n], halves + n * Format::kHalfBytes), ...);
      // To the compiler, the halves are really stored: it would take them out
      // of the registers by a shuffle each, which costs more than to load them.
      asm volatile("" : : "r"(halves) : "memory");
      return {halves, Format::kHalfBytes};
    }
    return lines;
  }

  template <int... step>
  static HWY_INLINE void Line(Panels lines, const float* a, VF (&sums)[kSums],
                              Indices<step...>) {
    if constexpr (kR <= 2) {
      (StepByColumn<step>(lines, a, sums, Wide(), Rows()), ...);
    } else {
      (StepByRow<step>(lines, a, sums, Wide(), Rows()), ...);
    }
  }

  // Into the L2 cache where bytes are what counts, that is where little is
  // computed per line; into the L1 cache where a line lasts long: measured.
  template <int... n>
  static HWY_INLINE void Prefetch(Panels far, Panels near, Indices<n...>) {
    constexpr bool kIntoL1 = Format::kScaled && (kR > 2 || Format::kSteps == 8);
    (__builtin_prefetch(far[n], /*rw=*/0, kIntoL1 ? 3 : 2), ...);
    (__builtin_prefetch(near[n], /*rw=*/0, 3), ...);
  }

  template <int... w>
  static HWY_INLINE void LoadAllScales(DType dtype, Panels scales,
                                       VF (&out)[kWide], Indices<w...>) {
    if constexpr (Format::kScaled) {
      ((out[w] = LoadScales<w % kVectors>(dtype, scales[w / kVectors])), ...);
      if constexpr (Format::kCodeScale != 1.0F) {
        const VF factor = hn::Set(DF(), 1.0F / Format::kCodeScale);
        ((out[w] = hn::Mul(out[w], factor)), ...);
      }
    }
  }

  // What a group's lines begin with.
  static HWY_INLINE int64_t HeaderBytes(const MulArgs& args) {
    return Format::kUnpacked
               ? kLineBytes * (args.zero_points ? 2 : 1)
               : GroupHeaderBytes(args.scale_dtype, args.zero_points);
  }
  template <int w>
  static HWY_INLINE VF ZeroPoints(Panels zero_points) {
    const uint8_t* of_panel = zero_points[w / kVectors];
    if constexpr (Format::kUnpacked) {
      return hn::LoadU(DF(), reinterpret_cast<const float*>(of_panel) +
                                 w % kVectors * kLanes);
    } else {
      return LoadZeroPoints<w % kVectors>(of_panel);
    }
  }
  template <int w, int... r>
  static HWY_INLINE void SubtractColumn(VF zero_points, const float* block_sums,
                                        VF (&sums)[kSums], Indices<r...>) {
    ((sums[r * kWide + w] = hn::NegMulAdd(
          zero_points, hn::Set(DF(), block_sums[r]), sums[r * kWide + w])),
     ...);
  }
  // block_sums: of the activations, [kR]
  template <int... w>
  static HWY_INLINE void SubtractZeroPoints(Panels zero_points,
                                            const float* block_sums,
                                            VF (&sums)[kSums], Indices<w...>) {
    (SubtractColumn<w>(ZeroPoints<w>(zero_points), block_sums, sums, Rows()),
     ...);
  }

  template <int... i>
  static HWY_INLINE void LoadSums(const float* tile, VF (&sums)[kSums],
                                  Indices<i...>) {
    ((sums[i] = hn::LoadU(DF(), tile + TileOffset(i))), ...);
  }
  template <int... i>
  static HWY_INLINE void StoreSums(const VF (&sums)[kSums], float* tile,
                                   Indices<i...>) {
    (hn::StoreU(sums[i], DF(), tile + TileOffset(i)), ...);
  }
  template <int... i>
  static HWY_INLINE void ClearSums(VF (&sums)[kSums], Indices<i...>) {
    ((sums[i] = (static_cast<void>(i), hn::Zero(DF()))), ...);
  }
  template <int... i>
  static HWY_INLINE void AddScaledSums(const VF (&sums)[kSums],
                                       const VF (&scales)[kWide], float* tile,
                                       Indices<i...>) {
    (hn::StoreU(hn::MulAdd(sums[i], scales[i % kWide],
                           hn::LoadU(DF(), tile + TileOffset(i))),
                DF(), tile + TileOffset(i)),
     ...);
  }
  // Where sum i lies in tile[panel][row][column].
  static constexpr int TileOffset(int i) {
    const int row = i / kWide;
    const int panel = i % kWide / kVectors;
    const int vector = i % kVectors;
    return (panel * kR + row) * static_cast<int>(kPanelWidth) + vector * kLanes;
  }

  // Adds `count` lines to the sums and steps over them.
  static HWY_INLINE void Lines(int64_t count, const MulArgs& args,
                               Panels& fetch, Panels& lines, const float*& a,
                               VF (&sums)[kSums]) {
    using Steps = std::make_integer_sequence<int, Format::kSteps>;
    using PanelIndices = std::make_integer_sequence<int, kN>;
    const uint8_t* stop = lines.first + count * kLineBytes;
    do {
      if constexpr (!Format::kUnpacked) {
        Prefetch(fetch, {lines.first + args.near_ahead, lines.stride},
                 PanelIndices());
        fetch.first += args.fetch_step;
      }
      alignas(64) uint8_t halves[kN * HalfBytes<Format>()];
      Line(Prepare(lines, halves, PanelIndices()), a, sums, Steps());
      lines.first += kLineBytes;
      a += Format::kSteps * kR;
    } while (lines.first != stop);
  }

  static void Run(const MulArgs& args) {
    const auto lines_of = [](int64_t steps) {
      return (steps + Format::kSteps - 1) / Format::kSteps;
    };
    VF sums[kSums];
    const float* a = args.strip + args.k_begin * kR;
    Panels fetch{args.fetch, args.panel_stride};
    if constexpr (!Format::kScaled) {
      Panels lines{
          args.panels + lines_of(args.k_begin - args.first_step) * kLineBytes,
          args.panel_stride};
      LoadSums(args.tile, sums, Sums());
      Lines(lines_of(args.k_end - args.k_begin), args, fetch, lines, a, sums);
      StoreSums(sums, args.tile, Sums());
    } else {
      BlockCursor at(args, Format::kSteps, HeaderBytes(args));
      const float* block_sums = nullptr;  // of the activations
      if (kZeroPoints && args.zero_points) {
        block_sums = args.strip + InterleavedFloats(args.k, args.block) * kR +
                     args.k_begin / args.block * kR;
      }
      for (int64_t k = args.k_begin; k < args.k_end;) {
        const int64_t end = std::min(k + args.block, args.k_end);
        ClearSums(sums, Sums());
        Panels lines{at.line, args.panel_stride};
        Lines(lines_of(end - k), args, fetch, lines, a, sums);
        at.line = lines.first;
        if constexpr (kZeroPoints) {
          if (args.zero_points) {
            const int64_t scale_bytes =
                kPanelWidth * DTypeBytes(args.scale_dtype);
            SubtractZeroPoints({at.scales + scale_bytes, args.panel_stride},
                               block_sums, sums, Wide());
            block_sums += kR;
          }
        }
        VF factors[kWide];
        LoadAllScales(args.scale_dtype, {at.scales, args.panel_stride}, factors,
                      Wide());
        AddScaledSums(sums, factors, args.tile, Sums());
        k = end;
        at.Advance(k);
      }
    }
  }
};

// Unpacks with the very code of the kernels.
template <class Format>
struct Unpack {
  using One = Mul<Format, 1, 1>;
  using Vectors = typename One::Wide;

  template <int step, int... v>
  static HWY_INLINE void Step(const uint8_t* line, float* out, Indices<v...>) {
    (hn::StoreU(Format::template Get<step, v>(line), DF(),
                out + step * kPanelWidth + v * kLanes),
     ...);
  }
  template <int... step>
  static HWY_INLINE void Line(const uint8_t* line, float* out,
                              Indices<step...>) {
    (Step<step>(line, out, Vectors()), ...);
  }
  template <int... v>
  static HWY_INLINE void StoreScales(const VF (&scales)[kVectors], float* out,
                                     Indices<v...>) {
    (hn::StoreU(scales[v], DF(), out + v * kLanes), ...);
  }
  template <int... v>
  static HWY_INLINE void StoreZeroPoints(const uint8_t* zero_points, float* out,
                                         Indices<v...>) {
    (hn::StoreU(LoadZeroPoints<v>(zero_points), DF(), out + v * kLanes), ...);
  }

  static void Run(const UnpackArgs& args) {
    using Steps = std::make_integer_sequence<int, Format::kSteps>;
    float* out = args.out;
    const uint8_t* fetch = args.fetch;
    for (int64_t k = args.k_begin; k < args.k_end;) {
      int64_t end = args.k_end;
      const uint8_t* line = args.panel + k / Format::kSteps * kLineBytes;
      if constexpr (Format::kScaled) {
        end = std::min(k + args.block, end);
        const int64_t header_bytes =
            GroupHeaderBytes(args.scale_dtype, args.zero_points);
        const int64_t group = k / args.group;
        line += (group + 1) * header_bytes;
        const uint8_t* header =
            args.panel + group * header_bytes +
            group * args.group / Format::kSteps * kLineBytes;
        VF scales[kVectors];
        One::LoadAllScales(args.scale_dtype, {header, 0}, scales, Vectors());
        StoreScales(scales, out, Vectors());
        out += kPanelWidth;
        if constexpr (One::kZeroPoints) {
          if (args.zero_points) {
            StoreZeroPoints(header + kPanelWidth * DTypeBytes(args.scale_dtype),
                            out, Vectors());
            out += kPanelWidth;
          }
        }
      }
      for (; k < end; k += Format::kSteps) {
        hwy::Prefetch(fetch);
        fetch += kLineBytes;
        alignas(64) uint8_t halves[HalfBytes<Format>()];
        Line(One::Prepare({line, 0}, halves, Indices<0>()).first, out, Steps());
        line += kLineBytes;
        out += Format::kSteps * kPanelWidth;
      }
    }
  }
};

template <class Format, int kR, int kN>
constexpr MulFn MulOrNull() {
  if constexpr (kR <= kRows && Fits(kR, kN, /*widened=*/Format::kSteps > 1)) {
    return &Mul<Format, kR, kN>::Run;
  } else {
    return nullptr;
  }
}

template <class Format, int... i>
void FillRows(MulFn (&table)[kMaxStripRows + 1][3], Indices<i...>) {
  ((table[i + 1][0] = MulOrNull<Format, i + 1, 1>(),
    table[i + 1][1] = MulOrNull<Format, i + 1, 2>(),
    table[i + 1][2] = MulOrNull<Format, i + 1, 4>()),
   ...);
}

inline void FillUnpacked(Kernels& kernels) {
  FillRows<UnpackedFormat>(kernels.mul_unpacked,
                           std::make_integer_sequence<int, kMaxStripRows>());
}

// Enters the kernels of one format.
template <class Format>
void FillFormat(Kernels& kernels) {
  FormatKernels& format = kernels[Format::kFormat];
  format.max_rows = kRows;
  if constexpr (Format::kFormat == WeightFormat::kInt4) {
    format.strip_floats = &InterleavedAndSummedFloats;
    format.pack_rows = &InterleaveAndSumRows;
  } else {
    format.strip_floats = &InterleavedFloats;
    format.pack_rows = &InterleaveRows;
    format.row_is_strip = true;
  }
  FillRows<Format>(format.mul,
                   std::make_integer_sequence<int, kMaxStripRows>());
  format.fused_rows = Format::kFormat == WeightFormat::kF32
                          ? std::numeric_limits<int>::max()
                          : kFusedRows;
  format.unpack = &Unpack<Format>::Run;
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#endif

#include "experts/kernels/x86.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/mul_digits.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "experts/kernels/digits-inl.h"
#include "hwy/highway.h"

#if HWY_ARCH_X86_64 && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2)

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

// Steps [k, min(k + kLanes, end)) of a row times its factor; zeros from `end`
// on.
HWY_INLINE VF LoadScaled(const float* row, int64_t k, int64_t end,
                         float factor) {
  const DF df;
  const int64_t count = std::clamp<int64_t>(end - k, 0, kLanes);
  const VF values = hn::MaskedLoad(hn::FirstN(df, count), df, row + k);
  return hn::Mul(values, hn::Set(df, factor));
}

// 2^e. Requires: it is a normal float.
inline float PowerOfTwo(int e) {
  const int32_t bits = (e + 127) << 23;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Digits and scale of the steps [begin, end) of a row; zeros up to `padded`.
// digits: of step 0 of the row, in chunks of kDigitSteps that are chunk_bytes
//         apart, the digits of a step digit_bytes
template <class Format>
DigitTerms PackBlock(const float* row, float factor, int64_t begin, int64_t end,
                     int64_t padded, uint8_t* digits, int64_t chunk_bytes,
                     int64_t digit_bytes) {
  const DF df;
  const DI di;
  VI largest = hn::Zero(di);
  for (int64_t k = begin; k < end; k += kLanes) {
    const VI bits = hn::BitCast(di, LoadScaled(row, k, end, factor));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7fffffff)));
  }
  const int32_t max_bits = hn::GetLane(hn::MaxOfLanes(di, largest));
  constexpr int32_t kInfinity = 0x7f800000;
  const bool finite = max_bits < kInfinity;
  float max = 0;
  std::memcpy(&max, &max_bits, sizeof(max));
  // The power of two that makes the largest magnitude an integer of 23 bits;
  // one less where its leading digit would not fit into 8 bits with its sign.
  // Values far below everything that matters need no more than 2^-122.
  constexpr float kMost = 0x7f7f7f;
  int exponent = 22 - std::max((max_bits >> 23) - 127, -100);
  if (finite && max * PowerOfTwo(exponent) > kMost) --exponent;
  const VF to_integer = hn::Set(df, finite ? PowerOfTwo(exponent) : 0.0F);
  VI sums[kDigits] = {hn::Zero(di), hn::Zero(di), hn::Zero(di)};
  const VI half = hn::Set(di, 128);
  for (int64_t k = begin; k < padded; k += kLanes) {
    const VI q2 = finite ? hn::NearestInt(hn::Mul(
                               LoadScaled(row, k, end, factor), to_integer))
                         : hn::Zero(di);
    const VI q1 = hn::ShiftRight<8>(hn::Add(q2, half));
    const VI q0 = hn::ShiftRight<8>(hn::Add(q1, half));
    const VI values[kDigits] = {q0, hn::Sub(q1, hn::ShiftLeft<8>(q0)),
                                hn::Sub(q2, hn::ShiftLeft<8>(q1))};
    uint8_t* dst = digits + k / kDigitSteps * chunk_bytes + k % kDigitSteps;
    for (int d = 0; d < kDigits; ++d) {
      sums[d] = hn::Add(sums[d], values[d]);
      const hn::Rebind<int8_t, DF> di8;
      auto bytes = hn::DemoteTo(di8, values[d]);
      if constexpr (Format::kEvenStepsFirst) {
        alignas(16) static constexpr int8_t kOrder[16] = {
            0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
        bytes = hn::TableLookupBytes(bytes, hn::LoadU(di8, kOrder));
      }
      hn::StoreU(bytes, di8, reinterpret_cast<int8_t*>(dst + d * digit_bytes));
    }
  }
  DigitTerms terms;
  terms.scale = finite ? PowerOfTwo(-exponent) / Format::kCodeScale
                       : std::numeric_limits<float>::quiet_NaN();
  int32_t sum = 0;  // below 2^30
  for (int d = 0; d < kDigits; ++d) {
    const int32_t of_digit = hn::GetLane(hn::SumOfLanes(di, sums[d]));
    terms.start[d] = -Format::kOffset * of_digit;
    sum = sum * 256 + of_digit;
  }
  terms.sum = static_cast<float>(sum) * terms.scale;
  return terms;
}

inline int64_t DigitFloats(int64_t k, int64_t block) {
  const int64_t blocks = (k + block - 1) / block;
  // Whole lines, so that every strip begins at one.
  const int64_t terms = (blocks * int64_t{sizeof(DigitTerms)} + 63) / 64 * 64;
  return (DigitBytes(k) + terms) / int64_t{sizeof(float)};
}

template <class Format>
void PackDigits(const PackRowsArgs& args) {
  const int64_t rows = args.num_rows;
  const int64_t padded_k = DigitBytes(args.k) / kDigits;
  auto* digits = reinterpret_cast<uint8_t*>(args.strip);
  auto* terms =
      reinterpret_cast<DigitTerms*>(digits + DigitBytes(args.k) * rows);
  for (int64_t r = 0; r < rows; ++r) {
    const float factor = args.scales != nullptr ? args.scales[r] : 1.0F;
    for (int64_t k = 0; k < padded_k; k += args.block) {
      const int64_t end = std::min(k + args.block, args.k);
      const DigitTerms of_block = PackBlock<Format>(
          args.rows[r], factor, k, end, std::min(k + args.block, padded_k),
          digits + r * kDigitSteps, kDigits * rows * kDigitSteps,
          rows * kDigitSteps);
      if (k < args.k) terms[k / args.block * rows + r] = of_block;
    }
  }
}

// sums[i] and following, one for each vector across a panel, += codes times the
// same four digits for all columns. By lines of assembly: compilers load the
// digits of all rows first and then run out of registers.
struct Quad {
  uint8_t bytes[4];
};
#if HWY_TARGET == HWY_AVX3
template <int i, int kSums>
HWY_INLINE void AddProducts(const VB (&codes)[kVectors], const uint8_t* digits,
                            VI (&sums)[kSums]) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sums[i].raw)
      : "v"(codes[0].raw), "m"(*reinterpret_cast<const Quad*>(digits)));
}
#else
template <int i, int kSums>
HWY_INLINE void AddProducts(const VB (&codes)[kVectors], const uint8_t* digits,
                            VI (&sums)[kSums]) {
  __m256i of_row;
  asm("vpbroadcastd %5, %2\n\t"
      "%{vex%} vpdpbusd %2, %3, %0\n\t"
      "%{vex%} vpdpbusd %2, %4, %1"
      : "+x"(sums[i].raw), "+x"(sums[i + 1].raw), "=&x"(of_row)
      : "x"(codes[0].raw), "x"(codes[1].raw),
        "m"(*reinterpret_cast<const Quad*>(digits)));
}
#endif

// The rows whose sums the registers hold at once, of a strip of kR and kN
// panels: three sums per row, panel and vector.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kDigitRows = 6;  // of a strip
inline constexpr int kRowsAtOnce = 6;
constexpr bool DigitsFit(int rows, int panels) {
  return panels <= (rows <= 2 ? 4 : rows <= 4 ? 2 : 1);
}
#else
inline constexpr int kDigitRows = 8;
inline constexpr int kRowsAtOnce = 2;
constexpr bool DigitsFit(int rows, int panels) {
  return panels <= (rows == 1 ? 2 : 1);
}
#endif

// The kernel for kR rows and kN panels.
template <class Format, int kR, int kN>
struct DigitMul {
  static constexpr int64_t kStepsPerLine = 4 * Format::kQuads;
  using Vectors = std::make_integer_sequence<int, kVectors>;
  using Panels = std::make_integer_sequence<int, kN>;

  struct Block {
    int64_t begin;  // steps of k
    int64_t end;
    const DigitTerms* terms;  // [kR]
    const uint8_t* scales;    // of the weights, and zero points
    const uint8_t* line;   // this and the next one are moved behind the block
    const uint8_t* fetch;  // by the last rows to be multiplied
  };

  // Rows [kFirst, kFirst + kRows) of the strip. Sums are
  // [digit][row][panel][vector].
  template <int kFirst, int kRowsNow>
  struct Rows {
    static constexpr int kWide = kN * kVectors;
    static constexpr int kSums = kDigits * kRowsNow * kWide;
    // Sums of the two quads of a line apart: a few chains would wait for each
    // other.
    static constexpr bool kSplit = Format::kQuads == 2 && kRowsNow * kN == 1;
    // The last rows to be multiplied fetch for all.
    static constexpr bool kLast = kFirst == 0;
    using Sums = std::make_integer_sequence<int, kSums>;
    using DigitRows = std::make_integer_sequence<int, kDigits * kRowsNow>;
    using Each = std::make_integer_sequence<int, kRowsNow>;

    template <int... i>
    static HWY_INLINE void Start(const DigitTerms* terms, VI (&sums)[kSums],
                                 Indices<i...>) {
      ((sums[i] = hn::Set(
            DI(),
            terms[kFirst + i / kWide % kRowsNow].start[i / kWide / kRowsNow])),
       ...);
    }
    template <int... i>
    static HWY_INLINE void Clear(VI (&sums)[kSums], Indices<i...>) {
      ((sums[i] = (static_cast<void>(i), hn::Zero(DI()))), ...);
    }
    template <int... i>
    static HWY_INLINE void Add(const VI (&more)[kSums], VI (&sums)[kSums],
                               Indices<i...>) {
      ((sums[i] = hn::Add(sums[i], more[i])), ...);
    }

    // digits: of these rows, from the quad on
    template <int quad, int n, int... v, int... i>
    static HWY_INLINE void AddQuad(const uint8_t* line, const uint8_t* digits,
                                   VI (&sums)[kSums], Indices<v...>,
                                   Indices<i...>) {
      const VB codes[kVectors] = {Format::template Load<quad, v>(line)...};
      (AddProducts<(i * kN + n) * kVectors>(
           codes, digits + (i / kRowsNow * kR + i % kRowsNow) * kDigitSteps,
           sums),
       ...);
    }
    template <int n>
    static HWY_INLINE void AddPanel(const MulArgs& args, const uint8_t* line,
                                    const uint8_t* fetch, const uint8_t* digits,
                                    VI (&sums)[kSums], VI (&odd)[kSums]) {
      line += n * args.panel_stride;
      if constexpr (kLast) {
        __builtin_prefetch(fetch + n * args.panel_stride, /*rw=*/0,
                           /*locality=*/2);  // into L2
        __builtin_prefetch(line + args.near_ahead, /*rw=*/0,
                           /*locality=*/3);  // into L1
      }
      AddQuad<0, n>(line, digits, sums, Vectors(), DigitRows());
      if constexpr (Format::kQuads == 2) {
        AddQuad<1, n>(line, digits + 4, kSplit ? odd : sums, Vectors(),
                      DigitRows());
      }
    }
    template <int... n>
    static HWY_INLINE void AddLine(const MulArgs& args, const uint8_t* line,
                                   const uint8_t* fetch, const uint8_t* digits,
                                   VI (&sums)[kSums], VI (&odd)[kSums],
                                   Indices<n...>) {
      (AddPanel<n>(args, line, fetch, digits, sums, odd), ...);
    }

    template <bool kZeroPoints, int n, int v, int... r>
    static HWY_INLINE void Finish(const MulArgs& args, const Block& block,
                                  const VI (&sums)[kSums], Indices<r...>) {
      const uint8_t* header = block.scales + n * args.panel_stride;
      const VF scales = LoadScales<v>(args.scale_dtype, header);
      VF zero_points = hn::Zero(DF());
      if constexpr (kZeroPoints) {
        zero_points = LoadZeroPoints<v>(
            header + kPanelWidth * DTypeBytes(args.scale_dtype));
      }
      constexpr int kFirstSum = n * kVectors + v;
      constexpr int kOfDigit = kRowsNow * kWide;
      float* tile = args.tile + (n * kR + kFirst) * kPanelWidth + v * kLanes;
      (AddBlock<kZeroPoints>(
           sums[kFirstSum + r * kWide], sums[kFirstSum + r * kWide + kOfDigit],
           sums[kFirstSum + r * kWide + 2 * kOfDigit], block.terms[kFirst + r],
           zero_points, scales, tile + r * kPanelWidth),
       ...);
    }
    template <bool kZeroPoints, int n, int... v>
    static HWY_INLINE void FinishPanel(const MulArgs& args, const Block& block,
                                       const VI (&sums)[kSums], Indices<v...>) {
      (Finish<kZeroPoints, n, v>(args, block, sums, Each()), ...);
    }
    template <bool kZeroPoints, int... n>
    static HWY_INLINE void FinishAll(const MulArgs& args, const Block& block,
                                     const VI (&sums)[kSums], Indices<n...>) {
      (FinishPanel<kZeroPoints, n>(args, block, sums, Vectors()), ...);
    }

    static HWY_INLINE void Run(const MulArgs& args, Block& block) {
      const auto* strip =
          reinterpret_cast<const uint8_t*>(args.strip) + kFirst * kDigitSteps;
      const uint8_t* line = block.line;
      const uint8_t* fetch = block.fetch;
      VI sums[kSums];
      VI odd[kSums];
      Start(block.terms, sums, Sums());
      if constexpr (kSplit) Clear(odd, Sums());
      for (int64_t k = block.begin; k < block.end;) {
        const uint8_t* digits = strip +
                                k / kDigitSteps * kDigits * kR * kDigitSteps +
                                k % kDigitSteps;
        const int64_t steps =
            std::min(kDigitSteps - k % kDigitSteps, block.end - k);
        const uint8_t* stop =
            line + (steps + kStepsPerLine - 1) / kStepsPerLine * kLineBytes;
        do {
          AddLine(args, line, fetch, digits, sums, odd, Panels());
          line += kLineBytes;
          if constexpr (kLast) fetch += args.fetch_step;
          digits += kStepsPerLine;
        } while (line != stop);
        k += steps;
      }
      if constexpr (kLast) {
        block.line = line;
        block.fetch = fetch;
      }
      if constexpr (kSplit) Add(odd, sums, Sums());
      if (Format::kFormat == WeightFormat::kInt4 && args.zero_points) {
        FinishAll<true>(args, block, sums, Panels());
      } else {
        FinishAll<false>(args, block, sums, Panels());
      }
    }
  };

  static constexpr int kParts = (kR + kRowsAtOnce - 1) / kRowsAtOnce;
  template <int... i>
  static HWY_INLINE void AllRows(const MulArgs& args, Block& block,
                                 Indices<i...>) {
    (Part<kParts - 1 - i>::Run(args, block), ...);
  }
  template <int part>
  using Part =
      Rows<part * kRowsAtOnce, std::min(kRowsAtOnce, kR - part * kRowsAtOnce)>;

  static void Run(const MulArgs& args) {
    const auto* strip = reinterpret_cast<const uint8_t*>(args.strip);
    BlockCursor at(args, kStepsPerLine,
                   GroupHeaderBytes(args.scale_dtype, args.zero_points));
    Block block;
    block.terms =
        reinterpret_cast<const DigitTerms*>(strip + DigitBytes(args.k) * kR) +
        args.k_begin / args.block * kR;
    block.fetch = args.fetch;
    for (int64_t k = args.k_begin; k < args.k_end; k = block.end) {
      block.begin = k;
      block.end = std::min(k + args.block, args.k_end);
      block.scales = at.scales;
      block.line = at.line;
      AllRows(args, block, std::make_integer_sequence<int, kParts>());
      block.terms += kR;
      at.line = block.line;
      at.Advance(block.end);
    }
  }
};

template <class Format, int kR, int kN>
constexpr MulFn DigitMulOrNull() {
  if constexpr (DigitsFit(kR, kN)) {
    return &DigitMul<Format, kR, kN>::Run;
  } else {
    return nullptr;
  }
}

template <class Format, int... i>
void FillDigits(FormatKernels& kernels, Indices<i...>) {
  kernels = FormatKernels();
  kernels.max_rows = kDigitRows;
  kernels.strip_floats = &DigitFloats;
  kernels.pack_rows = &PackDigits<Format>;
  kernels.cut_steps = 512;
  kernels.fused_rows = std::numeric_limits<int>::max();
  ((kernels.mul[i + 1][0] = DigitMulOrNull<Format, i + 1, 1>(),
    kernels.mul[i + 1][1] = DigitMulOrNull<Format, i + 1, 2>(),
    kernels.mul[i + 1][2] = DigitMulOrNull<Format, i + 1, 4>()),
   ...);
}

inline void UseDigits(Kernels& kernels) {
  constexpr auto kRows = std::make_integer_sequence<int, kDigitRows>();
  FillDigits<Int8Digits>(kernels[WeightFormat::kInt8], kRows);
  FillDigits<Int4Digits>(kernels[WeightFormat::kInt4], kRows);
  FillDigits<Mxfp4Digits>(kernels[WeightFormat::kMxfp4], kRows);
  kernels.same_bytes_everywhere = false;
}

}  // namespace HWY_NAMESPACE

#if HWY_TARGET == HWY_AVX3

void UseVnni(Kernels& kernels) {
  HWY_NAMESPACE::UseDigits(kernels);
  kernels.isa = "VNNI";
  if (!CpuFeatures().amd) return;
  FetchAsAmd(kernels[WeightFormat::kInt8]);
  // Codes of 4 bits come in best as one stream that nobody fetches ahead.
  for (const auto f : {WeightFormat::kInt4, WeightFormat::kMxfp4}) {
    FetchAsAmd(kernels[f]);
    kernels[f].stream_ahead = 0;
    kernels[f].mul[1][1] = nullptr;
    kernels[f].mul[1][2] = nullptr;
  }
}

#else

void UseAvxVnni(Kernels& kernels) {
  HWY_NAMESPACE::UseDigits(kernels);
  kernels.isa = "AVX_VNNI";
}

#endif

}  // namespace moe
HWY_AFTER_NAMESPACE();

#endif

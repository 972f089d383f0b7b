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

// sums[i] and following, one for each vector of the panels at once, += codes
// times the same four digits for all columns. By lines of assembly: compilers
// load the digits of all rows first and then run out of registers. A sum that
// is written before the last line has read its operands shares no register.
struct Quad {
  uint8_t bytes[4];
};
#if HWY_TARGET == HWY_AVX3
template <int i, int kSums, int kWide>
HWY_INLINE void AddProducts(const VB (&codes)[kWide], const uint8_t* digits,
                            VI (&sums)[kSums]) {
  const auto* quad = reinterpret_cast<const Quad*>(digits);
  VI of_row;
  if constexpr (kWide == 1) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sums[i].raw)
        : "v"(codes[0].raw), "m"(*quad));
  } else if constexpr (kWide == 2) {
    asm("vpbroadcastd %5, %2\n\t"
        "vpdpbusd %2, %3, %0\n\t"
        "vpdpbusd %2, %4, %1"
        : "+&v"(sums[i].raw), "+v"(sums[i + 1].raw), "=&v"(of_row.raw)
        : "v"(codes[0].raw), "v"(codes[1].raw), "m"(*quad));
  } else {
    static_assert(kWide == 4);
    asm("vpbroadcastd %9, %4\n\t"
        "vpdpbusd %4, %5, %0\n\t"
        "vpdpbusd %4, %6, %1\n\t"
        "vpdpbusd %4, %7, %2\n\t"
        "vpdpbusd %4, %8, %3"
        : "+&v"(sums[i].raw), "+&v"(sums[i + 1].raw), "+&v"(sums[i + 2].raw),
          "+v"(sums[i + 3].raw), "=&v"(of_row.raw)
        : "v"(codes[0].raw), "v"(codes[1].raw), "v"(codes[2].raw),
          "v"(codes[3].raw), "m"(*quad));
  }
}
#else
template <int i, int kSums, int kWide>
HWY_INLINE void AddProducts(const VB (&codes)[kWide], const uint8_t* digits,
                            VI (&sums)[kSums]) {
  static_assert(kWide == 2);
  VI of_row;
  asm("vpbroadcastd %5, %2\n\t"
      "%{vex%} vpdpbusd %2, %3, %0\n\t"
      "%{vex%} vpdpbusd %2, %4, %1"
      : "+&x"(sums[i].raw), "+x"(sums[i + 1].raw), "=&x"(of_row.raw)
      : "x"(codes[0].raw), "x"(codes[1].raw),
        "m"(*reinterpret_cast<const Quad*>(digits)));
}
#endif

// The rows whose sums the registers hold at once, of a strip of kR and kN
// panels: three sums per row, panel and vector.
#if HWY_TARGET == HWY_AVX3
// More than 4 rows of one panel load digits as often as they multiply by them,
// which makes strips of 6 slower than those of 4 and two panels; AMX has its
// own use for them.
inline constexpr int kStripRows = 4;
inline constexpr int kDigitRows = 6;
inline constexpr int kRowsAtOnce = 6;
inline constexpr int kKeptOutputs = 4;
inline constexpr int kPanelsTogether = 4;  // that share digits in a register
constexpr bool DigitsFit(int rows, int panels) {
  return panels <= (rows <= 2 ? 4 : rows <= 4 ? 2 : 1);
}
#else
inline constexpr int kStripRows = 8;
inline constexpr int kDigitRows = 8;
inline constexpr int kRowsAtOnce = 2;
inline constexpr int kKeptOutputs = 0;
inline constexpr int kPanelsTogether = 1;
constexpr bool DigitsFit(int rows, int panels) {
  return panels <= (rows == 1 ? 2 : 1);
}
#endif

// The kernel for kR rows and kN panels.
template <class Format, int kR, int kN>
struct DigitMul {
  static constexpr uint64_t kStepsPerLine = 4 * Format::kQuads;
  using Vectors = std::make_integer_sequence<int, kVectors>;
  using Panels = std::make_integer_sequence<int, kN>;
  static constexpr int kWide = kN * kVectors;
  // A few outputs stay in registers: through memory, each block would wait for
  // the one before.
  static constexpr int kOutputs = kR * kWide;
  static constexpr bool kKeep = kOutputs <= kKeptOutputs;
  using Outputs = VF[kKeep ? kOutputs : 1];

  struct Block {
    uint64_t begin;  // steps of k
    uint64_t end;
    int64_t scale_bytes;      // in front of zero points
    const DigitTerms* terms;  // [kR]
    const uint8_t* scales;    // of the weights, and zero points
    const uint8_t* line;   // this and the next one are moved behind the block
    const uint8_t* fetch;  // by the last rows to be multiplied
  };

  // Rows [kFirst, kFirst + kRows) of the strip. Sums are
  // [digit][row][panel][vector].
  template <int kFirst, int kRowsNow>
  struct Rows {
    static constexpr int kSums = kDigits * kRowsNow * kWide;
    // Sums of every other quad apart: a few chains would wait for each other.
    static constexpr bool kSplit = kRowsNow * kN == 1;
    // The last rows to be multiplied fetch for all.
    static constexpr bool kLast = kFirst == 0;
    using Sums = std::make_integer_sequence<int, kSums>;
    static constexpr int kTogether = std::min(kN, kPanelsTogether);
    using Wide = std::make_integer_sequence<int, kWide>;
    using Together = std::make_integer_sequence<int, kTogether * kVectors>;
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
    // line:   of panel 0; panels [n, n + kTogether) are multiplied
    template <int quad, int n, int... w, int... i>
    static HWY_INLINE void AddQuad(const uint8_t* line, int64_t panel_stride,
                                   const uint8_t* digits, VI (&sums)[kSums],
                                   Indices<w...>, Indices<i...>) {
      line += n * panel_stride;
      const VB codes[kTogether * kVectors] = {
          Format::template Load<quad, w % kVectors>(
              line + w / kVectors * panel_stride)...};
      (AddProducts<(i * kN + n) * kVectors>(
           codes, digits + (i / kRowsNow * kR + i % kRowsNow) * kDigitSteps,
           sums),
       ...);
    }
    template <int... n>
    static HWY_INLINE void AddPanels(const uint8_t* line, int64_t panel_stride,
                                     const uint8_t* digits, VI (&sums)[kSums],
                                     VI (&odd)[kSums], Indices<n...>) {
      (AddQuad<0, n * kTogether>(line, panel_stride, digits, sums, Together(),
                                 DigitRows()),
       ...);
      if constexpr (Format::kQuads == 2) {
        (AddQuad<1, n * kTogether>(line, panel_stride, digits + 4,
                                   kSplit ? odd : sums, Together(),
                                   DigitRows()),
         ...);
      }
    }
    template <int... n>
    static HWY_INLINE void Prefetch(const MulArgs& args, const uint8_t* line,
                                    const uint8_t* fetch, Indices<n...>) {
      (__builtin_prefetch(fetch + n * args.panel_stride, /*rw=*/0,
                          /*locality=*/2),  // into L2
       ...);
      (__builtin_prefetch(line + args.near_ahead + n * args.panel_stride,
                          /*rw=*/0, /*locality=*/3),  // into L1
       ...);
    }
    // And steps over it.
    static HWY_INLINE void AddLine(const MulArgs& args, const uint8_t*& line,
                                   const uint8_t*& fetch,
                                   const uint8_t*& digits, VI (&sums)[kSums],
                                   VI (&odd)[kSums]) {
      if constexpr (kLast) Prefetch(args, line, fetch, Panels());
      AddPanels(line, args.panel_stride, digits, sums, odd,
                std::make_integer_sequence<int, kN / kTogether>());
      line += kLineBytes;
      if constexpr (kLast) fetch += args.fetch_step;
      digits += kStepsPerLine;
    }

    // What a block adds to row r of the strip, panel n, vector v.
    template <bool kZeroPoints, int n, int v, int r>
    static HWY_INLINE void FinishRow(const MulArgs& args, const Block& block,
                                     const VI (&sums)[kSums], VF zero_points,
                                     VF scales, Outputs& outputs) {
      constexpr int kColumn = n * kVectors + v;
      constexpr int kSum = r * kWide + kColumn;
      constexpr int kOfDigit = kRowsNow * kWide;
      const auto add = [&](VF output) HWY_ATTR {
        return AddBlock<kZeroPoints>(
            sums[kSum], sums[kSum + kOfDigit], sums[kSum + 2 * kOfDigit],
            block.terms[kFirst + r], zero_points, scales, output);
      };
      if constexpr (kKeep) {
        static_assert(kFirst == 0);
        outputs[kSum] = add(outputs[kSum]);
      } else {
        float* out =
            args.tile + (n * kR + kFirst + r) * kPanelWidth + v * kLanes;
        hn::StoreU(add(hn::LoadU(DF(), out)), DF(), out);
      }
    }
    template <bool kZeroPoints, int n, int v, int... r>
    static HWY_INLINE void Finish(const MulArgs& args, const Block& block,
                                  const VI (&sums)[kSums], Outputs& outputs,
                                  Indices<r...>) {
      const uint8_t* header = block.scales + n * args.panel_stride;
      const VF scales = LoadScales<v>(args.scale_dtype, header);
      VF zero_points = hn::Zero(DF());
      if constexpr (kZeroPoints) {
        zero_points = LoadZeroPoints<v>(header + block.scale_bytes);
      }
      (FinishRow<kZeroPoints, n, v, r>(args, block, sums, zero_points, scales,
                                       outputs),
       ...);
    }
    template <bool kZeroPoints, int... w>
    static HWY_INLINE void FinishAll(const MulArgs& args, const Block& block,
                                     const VI (&sums)[kSums], Outputs& outputs,
                                     Indices<w...>) {
      (Finish<kZeroPoints, w / kVectors, w % kVectors>(args, block, sums,
                                                       outputs, Each()),
       ...);
    }

    // Adds all lines of a block, and steps over them. Steps are unsigned:
    // divided by shifts alone.
    static HWY_INLINE void AddLines(const MulArgs& args, const Block& block,
                                    const uint8_t*& line, const uint8_t*& fetch,
                                    VI (&sums)[kSums], VI (&odd)[kSums]) {
      constexpr uint64_t kChunkSteps = kDigitSteps;
      const auto* strip =
          reinterpret_cast<const uint8_t*>(args.strip) + kFirst * kDigitSteps;
      const auto digits_at = [&](uint64_t k) {
        const uint64_t in_chunk = k % kChunkSteps;
        return strip + (k - in_chunk) * kDigits * kR + in_chunk;
      };
      if (Format::kQuads == 2 && block.end - block.begin == 4 * kStepsPerLine) {
        // The usual block of codes of 4 bits, without what a loop costs.
        const uint8_t* digits = digits_at(block.begin);
        AddLine(args, line, fetch, digits, sums, odd);
        AddLine(args, line, fetch, digits, sums, odd);
        AddLine(args, line, fetch, digits, sums, odd);
        AddLine(args, line, fetch, digits, sums, odd);
        return;
      }
      for (uint64_t k = block.begin; k < block.end;) {
        const uint64_t steps =
            std::min(kChunkSteps - k % kChunkSteps, block.end - k);
        const uint8_t* digits = digits_at(k);
        const uint8_t* stop =
            line + (steps + kStepsPerLine - 1) / kStepsPerLine * kLineBytes;
        if constexpr (kSplit && Format::kQuads == 1) {
          while (stop - line > kLineBytes) {
            AddLine(args, line, fetch, digits, sums, odd);
            AddLine(args, line, fetch, digits, odd, sums);
          }
          if (line != stop) AddLine(args, line, fetch, digits, sums, odd);
        } else {
          do {
            AddLine(args, line, fetch, digits, sums, odd);
          } while (line != stop);
        }
        k += steps;
      }
    }

    static HWY_INLINE void Run(const MulArgs& args, Block& block,
                               Outputs& outputs) {
      const uint8_t* line = block.line;
      const uint8_t* fetch = block.fetch;
      VI sums[kSums];
      VI odd[kSums];
      Start(block.terms, sums, Sums());
      if constexpr (kSplit) Clear(odd, Sums());
      AddLines(args, block, line, fetch, sums, odd);
      if constexpr (kLast) {
        block.line = line;
        block.fetch = fetch;
      }
      if constexpr (kSplit) Add(odd, sums, Sums());
      if (Format::kFormat == WeightFormat::kInt4 && args.zero_points) {
        FinishAll<true>(args, block, sums, outputs, Wide());
      } else {
        FinishAll<false>(args, block, sums, outputs, Wide());
      }
    }
  };

  static constexpr int kParts = (kR + kRowsAtOnce - 1) / kRowsAtOnce;
  template <int... i>
  static HWY_INLINE void AllRows(const MulArgs& args, Block& block,
                                 Outputs& outputs, Indices<i...>) {
    (Part<kParts - 1 - i>::Run(args, block, outputs), ...);
  }
  template <int part>
  using Part =
      Rows<part * kRowsAtOnce, std::min(kRowsAtOnce, kR - part * kRowsAtOnce)>;

  template <int... i>
  static HWY_INLINE void LoadOutputs(const float* tile, Outputs& outputs,
                                     Indices<i...>) {
    ((outputs[i] = hn::LoadU(DF(), tile + TileOffset(i))), ...);
  }
  template <int... i>
  static HWY_INLINE void StoreOutputs(const Outputs& outputs, float* tile,
                                      Indices<i...>) {
    (hn::StoreU(outputs[i], DF(), tile + TileOffset(i)), ...);
  }
  // Where output i lies in tile[panel][row][column].
  static constexpr int TileOffset(int i) {
    return (i % kWide / kVectors * kR + i / kWide) *
               static_cast<int>(kPanelWidth) +
           i % kVectors * kLanes;
  }

  static void Run(const MulArgs& args) {
    using All = std::make_integer_sequence<int, kKeep ? kOutputs : 0>;
    const auto* strip = reinterpret_cast<const uint8_t*>(args.strip);
    BlockCursor at(args, kStepsPerLine,
                   GroupHeaderBytes(args.scale_dtype, args.zero_points));
    Block block;
    block.terms =
        reinterpret_cast<const DigitTerms*>(strip + DigitBytes(args.k) * kR) +
        args.k_begin / args.block * kR;
    block.fetch = args.fetch;
    block.scale_bytes = kPanelWidth * DTypeBytes(args.scale_dtype);
    Outputs outputs;
    LoadOutputs(args.tile, outputs, All());
    for (int64_t k = args.k_begin; k < args.k_end; k = block.end) {
      block.begin = k;
      block.end = std::min(k + args.block, args.k_end);
      block.scales = at.scales;
      block.line = at.line;
      AllRows(args, block, outputs, std::make_integer_sequence<int, kParts>());
      block.terms += kR;
      at.line = block.line;
      at.Advance(block.end);
    }
    StoreOutputs(outputs, args.tile, All());
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
  kernels.max_rows = kStripRows;
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

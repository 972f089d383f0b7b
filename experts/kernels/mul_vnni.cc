#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "experts/kernels/digits.h"

namespace moe {

MOE_BEFORE_X86()

namespace {

// Steps [k, min(k + 16, end)) of a row times its factor; zeros from `end` on.
HWY_INLINE __m512 LoadScaled(const float* row, int64_t k, int64_t end,
                             float factor) {
  const int64_t count = std::clamp<int64_t>(end - k, 0, 16);
  const auto mask = static_cast<__mmask16>((1U << count) - 1);
  return _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row + k),
                       _mm512_set1_ps(factor));
}

// Digits and scale of the steps [begin, end) of a row; zeros up to `padded`.
// digits: of step 0 of the row, in chunks of kDigitSteps that are chunk_bytes
//         apart, the digits of a step digit_bytes
template <class Format>
DigitTerms PackBlock(const float* row, float factor, int64_t begin, int64_t end,
                     int64_t padded, uint8_t* digits, int64_t chunk_bytes,
                     int64_t digit_bytes) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t k = begin; k < end; k += 16) {
    largest = _mm512_max_epi32(
        largest,
        _mm512_and_si512(_mm512_castps_si512(LoadScaled(row, k, end, factor)),
                         _mm512_set1_epi32(0x7fffffff)));
  }
  const int32_t max_bits = _mm512_reduce_max_epi32(largest);
  constexpr int32_t kInfinity = 0x7f800000;
  const bool finite = max_bits < kInfinity;
  float max = 0;
  std::memcpy(&max, &max_bits, sizeof(max));
  // The power of two that makes the largest magnitude an integer of 23 bits;
  // one less where its leading digit would not fit into 8 bits with its sign.
  // Values far below everything that matters need no more than 2^-122.
  constexpr float kMost = 0x7f7f7f;
  int exponent = 22 - std::max((max_bits >> 23) - 127, -100);
  const auto power = [](int e) {
    const int32_t bits = (e + 127) << 23;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  };
  if (finite && max * power(exponent) > kMost) --exponent;
  const __m512 to_integer = _mm512_set1_ps(finite ? power(exponent) : 0.0F);
  __m512i sums[kDigits] = {};
  const __m512i half = _mm512_set1_epi32(128);
  for (int64_t k = begin; k < padded; k += 16) {
    const __m512i q2 = finite
                           ? _mm512_cvtps_epi32(_mm512_mul_ps(
                                 LoadScaled(row, k, end, factor), to_integer))
                           : _mm512_setzero_si512();
    const __m512i q1 = _mm512_srai_epi32(_mm512_add_epi32(q2, half), 8);
    const __m512i q0 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 8);
    const __m512i values[kDigits] = {
        q0, _mm512_sub_epi32(q1, _mm512_slli_epi32(q0, 8)),
        _mm512_sub_epi32(q2, _mm512_slli_epi32(q1, 8))};
    uint8_t* dst = digits + k / kDigitSteps * chunk_bytes + k % kDigitSteps;
    for (int d = 0; d < kDigits; ++d) {
      sums[d] = _mm512_add_epi32(sums[d], values[d]);
      __m128i bytes = _mm512_cvtepi32_epi8(values[d]);
      if constexpr (Format::kEvenStepsFirst) {
        bytes =
            _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10,
                                                  12, 14, 9, 11, 13, 15));
      }
      _mm_store_si128(reinterpret_cast<__m128i*>(dst + d * digit_bytes), bytes);
    }
  }
  DigitTerms terms;
  terms.scale = finite ? power(-exponent) / Format::kCodeScale
                       : std::numeric_limits<float>::quiet_NaN();
  int32_t sum = 0;  // below 2^30
  for (int d = 0; d < kDigits; ++d) {
    const int32_t of_digit = _mm512_reduce_add_epi32(sums[d]);
    terms.start[d] = -Format::kOffset * of_digit;
    sum = sum * 256 + of_digit;
  }
  terms.sum = static_cast<float>(sum) * terms.scale;
  return terms;
}

int64_t DigitFloats(int64_t k, int64_t block) {
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

template <int... i>
using Indices = std::integer_sequence<int, i...>;

// sums += codes times the same four digits for all columns. Compilers load all
// broadcasts of a line first and then run out of registers; as its memory
// operand they cost none.
HWY_INLINE void AddProducts(__m512i codes, const uint8_t* digits,
                            __m512i& sums) {
  struct Quad {
    uint8_t bytes[4];
  };
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sums)
      : "v"(codes), "m"(*reinterpret_cast<const Quad*>(digits)));
}

// The kernel for kR rows and kN panels.
template <class Format, int kR, int kN>
struct VnniMul {
  static constexpr int kSums = kDigits * kR * kN;
  // Of one row and one panel, the two quads of a line have sums of their own:
  // three chains would wait for each other.
  static constexpr bool kSplit = Format::kQuads == 2 && kR * kN == 1;
  using Sums = std::make_integer_sequence<int, kSums>;
  using Rows = std::make_integer_sequence<int, kR>;
  using DigitRows = std::make_integer_sequence<int, kDigits * kR>;
  using Panels = std::make_integer_sequence<int, kN>;

  template <int... i>
  static HWY_INLINE void Start(const DigitTerms* terms, __m512i (&sums)[kSums],
                               Indices<i...>) {
    ((sums[i] = _mm512_set1_epi32(terms[i / kN % kR].start[i / kN / kR])), ...);
  }

  template <int n, int... i>
  static HWY_INLINE void AddQuad(__m512i codes, const uint8_t* digits,
                                 __m512i (&sums)[kSums], Indices<i...>) {
    (AddProducts(codes, digits + i * kDigitSteps, sums[i * kN + n]), ...);
  }
  template <int n>
  static HWY_INLINE void AddPanel(const uint8_t* line, const uint8_t* far,
                                  const uint8_t* near, const uint8_t* digits,
                                  __m512i (&sums)[kSums],
                                  __m512i (&odd)[kSums]) {
    __builtin_prefetch(far, /*rw=*/0, /*locality=*/2);   // into L2
    __builtin_prefetch(near, /*rw=*/0, /*locality=*/3);  // into L1
    __m512i quads[Format::kQuads];
    Format::Load(line, quads);
    AddQuad<n>(quads[0], digits, sums, DigitRows());
    if constexpr (Format::kQuads == 2) {
      AddQuad<n>(quads[1], digits + 4, kSplit ? odd : sums, DigitRows());
    }
  }
  template <int... n>
  static HWY_INLINE void AddLine(const uint8_t* line, const uint8_t* far,
                                 const uint8_t* near, int64_t stride,
                                 const uint8_t* digits, __m512i (&sums)[kSums],
                                 __m512i (&odd)[kSums], Indices<n...>) {
    (AddPanel<n>(line + n * stride, far + n * stride, near + n * stride, digits,
                 sums, odd),
     ...);
  }

  template <bool kZeroPoints, int n, int... r>
  static HWY_INLINE void Finish(const MulArgs& args, const uint8_t* header,
                                const DigitTerms* terms,
                                const __m512i (&sums)[kSums], Indices<r...>) {
    const __m512 scales = LoadGroupScales(args.scale_dtype, header);
    __m512 zero_points = _mm512_setzero_ps();
    if constexpr (kZeroPoints) {
      zero_points =
          LoadZeroPoints(header + kPanelWidth * DTypeBytes(args.scale_dtype));
    }
    const auto sum_of = [&](int row) {
      const __m512 sum =
          SumOfDigits(sums[row * kN + n], sums[(kR + row) * kN + n],
                      sums[(2 * kR + row) * kN + n], terms[row].scale);
      return kZeroPoints ? _mm512_fnmadd_ps(zero_points,
                                            _mm512_set1_ps(terms[row].sum), sum)
                         : sum;
    };
    float* tile = args.tile + n * kR * kPanelWidth;
    (_mm512_storeu_ps(tile + r * kPanelWidth,
                      _mm512_fmadd_ps(sum_of(r), scales,
                                      _mm512_loadu_ps(tile + r * kPanelWidth))),
     ...);
  }
  template <bool kZeroPoints, int... n>
  static HWY_INLINE void FinishAll(const MulArgs& args, const uint8_t* header,
                                   const DigitTerms* terms,
                                   const __m512i (&sums)[kSums],
                                   Indices<n...>) {
    (Finish<kZeroPoints, n>(args, header + n * args.panel_stride, terms, sums,
                            Rows()),
     ...);
  }

  static void Run(const MulArgs& args) {
    constexpr int64_t kStepsPerLine = 4 * Format::kQuads;
    const auto* strip = reinterpret_cast<const uint8_t*>(args.strip);
    const auto* terms =
        reinterpret_cast<const DigitTerms*>(strip + DigitBytes(args.k) * kR) +
        args.k_begin / args.block * kR;
    BlockCursor at(args, kStepsPerLine,
                   GroupHeaderBytes(args.scale_dtype, args.zero_points));
    const uint8_t* fetch = args.fetch;
    for (int64_t k = args.k_begin; k < args.k_end;) {
      const int64_t end = std::min(k + args.block, args.k_end);
      __m512i sums[kSums];
      Start(terms, sums, Sums());
      __m512i odd[kSums] = {};
      while (k < end) {
        const uint8_t* digits = strip +
                                k / kDigitSteps * kDigits * kR * kDigitSteps +
                                k % kDigitSteps;
        const int64_t steps = std::min(kDigitSteps - k % kDigitSteps, end - k);
        const uint8_t* stop =
            at.line + (steps + kStepsPerLine - 1) / kStepsPerLine * kLineBytes;
        do {
          AddLine(at.line, fetch, at.line + args.near_ahead, args.panel_stride,
                  digits, sums, odd, Panels());
          at.line += kLineBytes;
          fetch += args.fetch_step;
          digits += kStepsPerLine;
        } while (at.line != stop);
        k += steps;
      }
      if constexpr (kSplit) {
        for (int i = 0; i < kSums; ++i) {
          sums[i] = _mm512_add_epi32(sums[i], odd[i]);
        }
      }
      if (Format::kFormat == WeightFormat::kInt4 && args.zero_points) {
        FinishAll<true>(args, at.scales, terms, sums, Panels());
      } else {
        FinishAll<false>(args, at.scales, terms, sums, Panels());
      }
      terms += kR;
      at.Advance(k);
    }
  }
};

// What 32 registers hold: three sums per row and panel.
constexpr int kRows = 6;
constexpr int kPanelsPerRows[kRows + 1] = {0, 4, 4, 2, 2, 1, 1};

template <class Format, int kR, int kN>
constexpr MulFn MulOrNull() {
  if constexpr (kN <= kPanelsPerRows[kR]) {
    return &VnniMul<Format, kR, kN>::Run;
  } else {
    return nullptr;
  }
}

template <class Format, int... i>
void Fill(FormatKernels& kernels, Indices<i...>) {
  kernels = FormatKernels();
  kernels.max_rows = kRows;
  kernels.strip_floats = &DigitFloats;
  kernels.pack_rows = &PackDigits<Format>;
  kernels.cut_steps = 512;
  kernels.fused_rows = std::numeric_limits<int>::max();
  ((kernels.mul[i + 1][0] = MulOrNull<Format, i + 1, 1>(),
    kernels.mul[i + 1][1] = MulOrNull<Format, i + 1, 2>(),
    kernels.mul[i + 1][2] = MulOrNull<Format, i + 1, 4>()),
   ...);
}

template <class Format>
void Use(Kernels& kernels) {
  Fill<Format>(kernels[Format::kFormat],
               std::make_integer_sequence<int, kRows>());
}

}  // namespace

MOE_AFTER_X86()

void UseVnni(Kernels& kernels) {
  kernels.isa = "VNNI";
  kernels.same_bytes_everywhere = false;
  Use<Int8Digits>(kernels);
  Use<Int4Digits>(kernels);
  Use<Mxfp4Digits>(kernels);
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

}  // namespace moe

#endif  // HWY_ARCH_X86_64

// The arithmetic Digits (see kernels.h): strips, and how the sums of a block
// become floats. For x86; VNNI and AMX form the same integers.

#pragma once

#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <cstdint>

#include "experts/kernels/block_cursor.h"

namespace moe {

inline constexpr int kDigits = 3;
// Steps of k whose digits lie together: [digit][row][kDigitSteps] bytes.
inline constexpr int64_t kDigitSteps = 64;

// Behind all digits of the strip, [block][row].
struct DigitTerms {
  // The activations of the block are this times (d0 * 2^16 + d1 * 2^8 + d2).
  float scale;
  // The sum of the activations, in the scale of the codes: for zero points.
  float sum;
  // Codes are multiplied as unsigned bytes, plus an offset: minus the offset
  // times the sum of the digits, by which sums of such products start.
  int32_t start[kDigits];
};

inline int64_t DigitBytes(int64_t k) {
  return (k + kDigitSteps - 1) / kDigitSteps * kDigitSteps * kDigits;
}

MOE_BEFORE_X86()

// What is added to 16 outputs of a row, before the scales of the weights.
HWY_INLINE __m512 SumOfDigits(__m512i d0, __m512i d1, __m512i d2, float scale) {
  // Sums of 128 steps at most: no overflow.
  const __m512 low =
      _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(d1, 8), d2));
  const __m512 sum =
      _mm512_fmadd_ps(_mm512_cvtepi32_ps(d0), _mm512_set1_ps(0x1p16F), low);
  return _mm512_mul_ps(sum, _mm512_set1_ps(scale));
}

// The scales of a group: 16 columns.
HWY_INLINE __m512 LoadGroupScales(DType dtype, const uint8_t* scales) {
  switch (dtype) {
    case DType::kBF16:
      return _mm512_castsi512_ps(_mm512_slli_epi32(
          _mm512_cvtepu16_epi32(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales))),
          16));
    case DType::kF16:
      return _mm512_cvtph_ps(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
    case DType::kF8E8M0: {
      const __m512i code = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
      __m512i bits = _mm512_slli_epi32(code, 23);
      bits = _mm512_mask_mov_epi32(
          bits, _mm512_cmpeq_epi32_mask(code, _mm512_setzero_si512()),
          _mm512_set1_epi32(0x00400000));
      bits = _mm512_mask_mov_epi32(
          bits, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255)),
          _mm512_set1_epi32(0x7fc00000));
      return _mm512_castsi512_ps(bits);
    }
    default:
      return _mm512_loadu_ps(scales);
  }
}

// The zero points of a group, less 8: 16 columns.
HWY_INLINE __m512 LoadZeroPoints(const uint8_t* zero_points) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(zero_points))));
}

// The formats whose codes are small integers.

struct Int8Digits {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kQuads = 1;  // vectors of 4 steps of 16 columns
  static constexpr bool kTileInPlace = true;
  static constexpr int kOffset = 128;
  static constexpr float kCodeScale = 1.0F;
  static constexpr bool kEvenStepsFirst = false;
  // Codes plus the offset.
  static HWY_INLINE void Load(const uint8_t* line, __m512i (&quads)[kQuads]) {
    quads[0] = _mm512_xor_si512(_mm512_loadu_si512(line),
                                _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

// Of the 8 nibbles of a column, the even steps, then the odd ones.
struct Int4Digits {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kQuads = 2;
  static constexpr bool kTileInPlace = false;
  static constexpr int kOffset = 8;
  static constexpr float kCodeScale = 1.0F;
  static constexpr bool kEvenStepsFirst = true;
  static HWY_INLINE void Load(const uint8_t* line, __m512i (&quads)[kQuads]) {
    const __m512i low = _mm512_set1_epi8(0xf);
    const __m512i words = _mm512_loadu_si512(line);
    quads[0] = _mm512_and_si512(words, low);
    quads[1] = _mm512_and_si512(_mm512_srli_epi32(words, 4), low);
  }
};

// Twice an E2M1 value is an integer.
struct Mxfp4Digits {
  static constexpr WeightFormat kFormat = WeightFormat::kMxfp4;
  static constexpr int kQuads = 2;
  static constexpr bool kTileInPlace = false;
  static constexpr int kOffset = 12;
  static constexpr float kCodeScale = 2.0F;
  static constexpr bool kEvenStepsFirst = true;
  static HWY_INLINE void Load(const uint8_t* line, __m512i (&quads)[kQuads]) {
    const __m512i values = _mm512_broadcast_i32x4(_mm_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    __m512i nibbles[kQuads];
    Int4Digits::Load(line, nibbles);
    quads[0] = _mm512_shuffle_epi8(values, nibbles[0]);
    quads[1] = _mm512_shuffle_epi8(values, nibbles[1]);
  }
};

MOE_AFTER_X86()

}  // namespace moe

#endif  // HWY_ARCH_X86_64

// The arithmetic Digits (see kernels.h), compiled once per instruction set: how
// codes become bytes, and how the sums of a block become floats. Include only
// below hwy/foreach_target.h.

#if defined(MOE_EXPERTS_KERNELS_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_EXPERTS_KERNELS_DIGITS_INL_H_
#undef MOE_EXPERTS_KERNELS_DIGITS_INL_H_
#else
#define MOE_EXPERTS_KERNELS_DIGITS_INL_H_
#endif

#include <cstdint>

#include "experts/base/weight_format.h"
#include "experts/kernels/digits.h"
#include "experts/kernels/mul-inl.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR  // whose vectors hold no four bytes
HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

using DB = hn::Repartition<uint8_t, DF>;
using VB = hn::Vec<DB>;
using VI = hn::Vec<DI>;

// Outputs of a row plus what the sums of a block, one per digit, add to them.
// Zero points and scales: of the weights.
template <bool kZeroPoints>
HWY_INLINE VF AddBlock(VI d0, VI d1, VI d2, const DigitTerms& terms,
                       VF zero_points, VF scales, VF out) {
  // Sums of 128 steps at most: no overflow.
  const DF df;
  const VF low = hn::ConvertTo(df, hn::Add(hn::ShiftLeft<8>(d1), d2));
  VF sum = hn::MulAdd(hn::ConvertTo(df, d0), hn::Set(df, 0x1p16F), low);
  sum = hn::Mul(sum, hn::Set(df, terms.scale));
  if constexpr (kZeroPoints) {
    sum = hn::NegMulAdd(zero_points, hn::Set(df, terms.sum), sum);
  }
  return hn::MulAdd(sum, scales, out);
}

// The formats whose codes are small integers. Load<quad, vector>: of columns
// [vector * kLanes, +kLanes) of a line the codes of 4 steps, plus the offset.

struct Int8Digits {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kQuads = 1;  // of steps in a line
  static constexpr bool kTileInPlace = true;
  static constexpr int kOffset = 128;
  static constexpr float kCodeScale = 1.0F;
  static constexpr bool kEvenStepsFirst = false;
  template <int quad, int vector>
  static HWY_INLINE VB Load(const uint8_t* line) {
    const DB db;
    return hn::Xor(hn::LoadU(db, line + vector * kLanes * 4),
                   hn::Set(db, 0x80));
  }
};

// The even steps of a column's 8 nibbles, then the odd ones.
struct Int4Digits {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kQuads = 2;
  static constexpr bool kTileInPlace = false;
  static constexpr int kOffset = 8;
  static constexpr float kCodeScale = 1.0F;
  static constexpr bool kEvenStepsFirst = true;
  template <int quad, int vector>
  static HWY_INLINE VB Load(const uint8_t* line) {
    const DB db;
    const DU du;
    VU words = hn::BitCast(du, hn::LoadU(db, line + vector * kLanes * 4));
    if constexpr (quad == 1) words = hn::ShiftRight<4>(words);
    return hn::And(hn::BitCast(db, words), hn::Set(db, 0xf));
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
  template <int quad, int vector>
  static HWY_INLINE VB Load(const uint8_t* line) {
    alignas(16) static constexpr uint8_t kValues[16] = {
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return hn::TableLookupBytes(hn::LoadDup128(DB(), kValues),
                                Int4Digits::Load<quad, vector>(line));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();
#endif

#endif

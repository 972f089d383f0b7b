// Packing, vectorised across the columns of a panel: each lane goes through the
// operations of one column in a fixed order, without fused multiply-adds that
// would round differently, so that every instruction set writes the same bytes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/quantise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <bit>
#include <cstdint>
#include <limits>

#include "experts/kernels/fill.h"
#include "experts/kernels/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPanelWidth>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;
using MF = hn::Mask<DF>;

constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

// Groups whose weights are all smaller become zero, so that no scale is
// subnormal and its inverse is finite.
constexpr float kTiny = 0x1p-100F;
// Added to a float below 2^22 it leaves no bits for a fraction: the sum is
// rounded to the nearest integer, ties to even, which its last bits hold.
constexpr float kRounder = 0x1.8p23F;

HWY_INLINE VF Set(float value) { return hn::Set(DF(), value); }
HWY_INLINE VU Set(uint32_t value) { return hn::Set(DU(), value); }
HWY_INLINE VU Bits(VF x) { return hn::BitCast(DU(), x); }
HWY_INLINE VF Float(VU bits) { return hn::BitCast(DF(), bits); }
HWY_INLINE VU Magnitude(VF x) { return hn::And(Bits(x), Set(0x7fffffffU)); }
// The sign as the bit that has the value `bit`.
template <uint32_t bit>
HWY_INLINE VU Sign(VF x) {
  constexpr int kShift = 31 - std::countr_zero(bit);
  return hn::And(hn::ShiftRight<kShift>(Bits(x)), Set(bit));
}

// a >= b ? yes : no. Requires: a, b < 2^31.
HWY_INLINE VU IfAtLeast(VU a, uint32_t b, VU yes, VU no) {
  const DI di;
  const auto less = hn::Lt(hn::BitCast(di, a), hn::BitCast(di, Set(b)));
  return hn::IfThenElse(hn::RebindMask(DU(), less), no, yes);
}

// As FloatToBF16.
HWY_INLINE VU ToBF16(VF x) {
  const VU bits = Bits(x);
  const VU upper = hn::ShiftRight<16>(bits);
  const VU odd = hn::And(upper, Set(1U));
  const VU rounded = hn::ShiftRight<16>(bits + Set(0x7fffU) + odd);
  return IfAtLeast(Magnitude(x), 0x7f800001U, hn::Or(upper, Set(0x40U)),
                   rounded);
}

HWY_INLINE VF RoundToBF16(VF x) { return Float(hn::ShiftLeft<16>(ToBF16(x))); }

// The nearest value of a small IEEE-like format, ties to even, as its exponent
// and mantissa; subnormal values included. Requires: x >= 0, in range.
template <int kMantissaBits, int kBias>
HWY_INLINE VU ToSmallFloat(VF x) {
  constexpr int kShift = 23 - kMantissaBits;
  const DI di;
  const VU least = Set(uint32_t{128 - kBias} << 23);  // of normal values
  const VU exponent = hn::And(Bits(x), Set(0x7f800000U));
  const VU at_least = hn::BitCast(
      DU(), hn::Max(hn::BitCast(di, exponent), hn::BitCast(di, least)));
  // A power of two whose last place is that of the small float: adding it
  // rounds there. What it adds to that power is the mantissa, with its leading
  // bit, which is one step of the exponent.
  const VU rounder = at_least + Set(uint32_t{kShift} << 23);
  const VU mantissa = Bits(x + Float(rounder)) - rounder;
  return hn::ShiftRight<kShift>(at_least - least) + mantissa;
}

// As FloatToF16.
HWY_INLINE VU ToF16(VF x) {
  const VU magnitude = Magnitude(x);
  VU half = ToSmallFloat<10, 15>(Float(magnitude));
  half = IfAtLeast(magnitude, 0x477ff000U, Set(0x7c00U), half);
  half = IfAtLeast(magnitude, 0x7f800001U, Set(0x7e00U), half);
  return hn::Or(Sign<0x8000>(x), half);
}

// Adjacent columns of some steps.
struct Columns {
  HWY_INLINE VF operator[](int64_t step) const {
    return hn::LoadU(DF(), w + step * kPanelWidth);
  }

  const float* w;
  int64_t steps;
};

// The largest magnitude in a group of each column, and what is made of it.
struct Extent {
  explicit HWY_INLINE Extent(Columns columns) {
    const DI di;
    // Magnitudes compare like integers; those of NaN are the largest.
    VI bits = hn::Zero(di);
    for (int64_t i = 0; i < columns.steps; ++i) {
      bits = hn::Max(bits, hn::BitCast(di, Magnitude(columns[i])));
    }
    max = hn::BitCast(DF(), bits);
    finite = hn::Lt(max, Set(std::numeric_limits<float>::infinity()));
    coded = hn::And(finite, hn::Ge(max, Set(kTiny)));
  }

  // `scale` where there are codes, `of_zeros` where all weights are (nearly)
  // zero, NaN where one is not finite.
  HWY_INLINE VF Scale(VF scale, float of_zeros) const {
    const VF nan = Set(std::numeric_limits<float>::quiet_NaN());
    const VF uncoded = hn::IfThenElse(finite, Set(of_zeros), nan);
    return hn::IfThenElse(coded, scale, uncoded);
  }
  // What to And with, so that the codes of other groups become 0.
  HWY_INLINE VU Mask() const {
    return hn::IfThenElseZero(hn::RebindMask(DU(), coded), Set(~0U));
  }

  VF max;
  MF finite;
  MF coded;
};

// Each line holds a word per column, of code(weight) for the steps of the line,
// the first step in its lowest bits. Requires: codes have kBits bits.
template <int kBits, class Code>
HWY_INLINE void StoreWords(Columns columns, uint8_t* lines, Code code) {
  constexpr int kStepsPerLine = 32 / kBits;
  const DU du;
  for (int64_t i = 0; i < columns.steps; i += kStepsPerLine) {
    VU words = code(columns[i + kStepsPerLine - 1]);
    for (int j = kStepsPerLine - 2; j >= 0; --j) {
      words = hn::Or(hn::ShiftLeft<kBits>(words), code(columns[i + j]));
    }
    hn::StoreU(words, du, reinterpret_cast<uint32_t*>(lines));
    lines += kLineBytes;
  }
}

// Each step is 16 numbers of type T, those of code(weight).
template <class T, class Code>
HWY_INLINE void StoreSteps(Columns columns, uint8_t* lines, Code code) {
  const hn::Rebind<T, DF> d;
  for (int64_t i = 0; i < columns.steps; ++i) {
    // Signed numbers that T holds: no instruction set saturates them.
    const VI codes = hn::BitCast(DI(), code(columns[i]));
    hn::StoreU(hn::DemoteTo(d, codes), d,
               reinterpret_cast<T*>(lines) + i * kPanelWidth);
  }
}

// How the formats pack a group of kLanes columns: writes their part of the
// lines, and of the zero points if there are any, and returns their scales.
// kColumnBytes lie between neighbours in a line.
struct F32Packer {
  static constexpr int64_t kColumnBytes = 4;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    for (int64_t i = 0; i < columns.steps; ++i) {
      hn::StoreU(columns[i], DF(),
                 reinterpret_cast<float*>(lines + i * kLineBytes));
    }
    return hn::Zero(DF());
  }
};

struct BF16Packer {
  static constexpr int64_t kColumnBytes = 4;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    StoreWords<16>(columns, lines, [](VF w) HWY_ATTR { return ToBF16(w); });
    return hn::Zero(DF());
  }
};

struct F16Packer {
  static constexpr int64_t kColumnBytes = 2;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    StoreSteps<uint16_t>(columns, lines,
                         [](VF w) HWY_ATTR { return ToF16(w); });
    return hn::Zero(DF());
  }
};

// The scale is rounded up, so that no code is beyond 127.
struct Int8Packer {
  static constexpr int64_t kColumnBytes = 4;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    const Extent extent(columns);
    const VU exact = Bits(extent.max / Set(127.0F));
    const VF scale = Float(hn::And(exact + Set(0xffffU), Set(0xffff0000U)));
    const VF inverse = Set(1.0F) / scale;
    const VU mask = hn::And(extent.Mask(), Set(0xffU));
    StoreWords<8>(columns, lines, [&](VF w) HWY_ATTR {
      return hn::And(Bits(w * inverse + Set(kRounder)), mask);
    });
    return extent.Scale(scale, 0.0F);
  }
};

// What a column's codes mean: weights are (code - zero_point) * scale.
struct Int4Coding {
  VF scale;
  VF zero_point;  // a whole number in 0..15
};

// The pair with the least squared error is taken, from five scales and zero
// points and the scales that fit their codes best. Three spread the codes over
// the range of the weights and zero; two give the extreme weight 8 and 7 steps,
// and so find codes again that were symmetric.
struct Int4Packer {
  static constexpr int64_t kColumnBytes = 4;

  // Nearest integer, ties to even. Requires: |x| < 2^22.
  static HWY_INLINE VF Round(VF x) {
    return (x + Set(kRounder)) - Set(kRounder);
  }
  // The weight in steps, as far as the codes go.
  static HWY_INLINE VF Clamp(VF steps, const Int4Coding& coding) {
    return hn::Min(hn::Max(steps, hn::Neg(coding.zero_point)),
                   Set(15.0F) - coding.zero_point);
  }

  struct Best {
    Int4Coding coding;
    VF error;
  };

  // Takes `coding` for the lanes where it is better. With kFit, returns the
  // scale that would suit its codes best, by least squares.
  template <bool kFit>
  static HWY_INLINE VF Consider(Columns columns, VF max,
                                const Int4Coding& coding, MF lanes,
                                Best& best) {
    const VF inverse = Set(1.0F) / coding.scale;
    VF error = hn::Zero(DF());
    VF products = hn::Zero(DF());
    VF squares = hn::Zero(DF());
    for (int64_t i = 0; i < columns.steps; ++i) {
      const VF w = columns[i];
      const VF exact = w * inverse;
      const VF steps = Round(Clamp(exact, coding));
      const VF off = exact - steps;
      error = error + off * off;
      if constexpr (kFit) {
        products = products + w * steps;
        squares = hn::MulAdd(steps, steps, squares);  // small integers: exact
      }
    }
    // Relative to the extreme weight, its square neither over- nor underflows.
    const VF relative = coding.scale / max;
    error = error * (relative * relative);
    const MF better = hn::And(lanes, hn::Lt(error, best.error));
    const auto take = [&](VF& to, VF from)
                          HWY_ATTR { to = hn::IfThenElse(better, from, to); };
    take(best.error, error);
    take(best.coding.scale, coding.scale);
    take(best.coding.zero_point, coding.zero_point);
    return RoundToBF16(products / squares);
  }

  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* zero_points) {
    const Extent extent(columns);
    VF low = hn::Zero(DF());
    VF high = hn::Zero(DF());
    for (int64_t i = 0; i < columns.steps; ++i) {
      low = hn::Min(low, columns[i]);
      high = hn::Max(high, columns[i]);
    }
    Best best = {.coding = {.scale = hn::Zero(DF()), .zero_point = Set(8.0F)},
                 .error = Set(std::numeric_limits<float>::infinity())};
    const auto consider = [&](const Int4Coding& coding) HWY_ATTR {
      const VF fitted =
          Consider<true>(columns, extent.max, coding, extent.coded, best);
      const MF usable = hn::Ge(Float(Magnitude(fitted)), Set(kTiny / 16));
      Consider<false>(columns, extent.max, {fitted, coding.zero_point},
                      hn::And(usable, extent.coded), best);
    };
    for (const float steps : {15.5F, 14.5F, 16.5F}) {
      // The range of huge weights is no float.
      const VF scale = RoundToBF16(high / Set(steps) - low / Set(steps));
      const VF middle = (high * Set(0.5F) + low * Set(0.5F)) / scale;
      const VF zero_point = Round(Set(7.5F) - middle);
      consider({scale, hn::Min(hn::Max(zero_point, Set(0.0F)), Set(15.0F))});
    }
    const VF towards_extreme =
        hn::IfThenElse(hn::Eq(high, extent.max), Set(7.0F), Set(8.0F));
    for (const float steps : {8.0F, 7.0F}) {
      consider({RoundToBF16(extent.max / Set(steps)), towards_extreme});
    }
    const Int4Coding& coding = best.coding;
    const VF inverse = Set(1.0F) / coding.scale;
    const VI zero_point = hn::ConvertTo(DI(), coding.zero_point);
    const hn::Rebind<uint8_t, DF> du8;
    hn::StoreU(hn::DemoteTo(du8, zero_point), du8, zero_points);
    const VU mask = hn::And(extent.Mask(), Set(0xfU));
    const VU otherwise = hn::AndNot(mask, Set(8U));
    StoreWords<4>(columns, lines, [&](VF w) HWY_ATTR {
      const VU steps = Bits(Clamp(w * inverse, coding) + Set(kRounder));
      const VU code = steps + hn::BitCast(DU(), zero_point);
      return hn::Or(hn::And(code, mask), otherwise);
    });
    return extent.Scale(coding.scale, 0.0F);
  }
};

struct Fp8Packer {
  static constexpr int64_t kColumnBytes = 1;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    const Extent extent(columns);
    const VF scale = extent.max / Set(448.0F);
    const VU mask = hn::And(extent.Mask(), Set(0xffU));
    StoreSteps<uint8_t>(columns, lines, [&](VF w) HWY_ATTR {
      const VF x = hn::Min(Float(Magnitude(w)) / scale, Set(448.0F));
      return hn::And(hn::Or(Sign<0x80>(w), ToSmallFloat<3, 7>(x)), mask);
    });
    return extent.Scale(scale, 0.0F);
  }
};

// The OCP recipe: the extreme weight gets the largest exponent, 2, and what is
// beyond the largest value becomes that.
struct Mxfp4Packer {
  static constexpr int64_t kColumnBytes = 4;
  static HWY_INLINE VF Pack(Columns columns, uint8_t* lines,
                            uint8_t* /*zero_points*/) {
    const Extent extent(columns);
    const VU exponent = hn::And(Bits(extent.max), Set(0x7f800000U));
    const VU scale = exponent - Set(2U << 23);
    // A power of two as well: multiplying is dividing.
    const VF inverse = Float(Set(254U << 23) - scale);
    const VU mask = hn::And(extent.Mask(), Set(0xfU));
    StoreWords<4>(columns, lines, [&](VF w) HWY_ATTR {
      const VF x = hn::Min(Float(Magnitude(w)) * inverse, Set(6.0F));
      return hn::And(hn::Or(Sign<8>(w), ToSmallFloat<1, 1>(x)), mask);
    });
    return extent.Scale(Float(scale), 1.0F);
  }
};

#if HWY_TARGET == HWY_SCALAR
// tile[step][column] = rows[column][step].
HWY_INLINE void Transpose(const PackLinesArgs& args, float* tile) {
  for (int64_t i = 0; i < args.steps; ++i) {
    for (int64_t column = 0; column < kPanelWidth; ++column) {
      tile[i * kPanelWidth + column] = args.rows[column * args.row_stride + i];
    }
  }
}
#else
// The i-th block of four lanes is from row 4i.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* row, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, row);
  } else {
    const hn::Half<D> half;
    return hn::Combine(
        d, LoadBlocks(half, row + hn::MaxLanes(half) * stride, stride),
        LoadBlocks(half, row, stride));
  }
}

// tile[step][column] = rows[column][step], four steps at a time.
HWY_INLINE void Transpose(const PackLinesArgs& args, float* tile) {
  const DF d;
  const hn::RepartitionToWide<DF> dw;
  const int64_t stride = args.row_stride;
  for (int64_t i = 0; i < args.steps; i += 4) {
    for (int64_t column = 0; column < kPanelWidth; column += kLanes) {
      const float* row = args.rows + column * stride + i;
      const VF row0 = LoadBlocks(d, row, stride);
      const VF row1 = LoadBlocks(d, row + stride, stride);
      const VF row2 = LoadBlocks(d, row + 2 * stride, stride);
      const VF row3 = LoadBlocks(d, row + 3 * stride, stride);
      const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, row0, row1));
      const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, row0, row1));
      const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, row2, row3));
      const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, row2, row3));
      const auto store = [&](int64_t step, auto wide) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, wide), d,
                   tile + (i + step) * kPanelWidth + column);
      };
      store(0, hn::InterleaveLower(dw, low01, low23));
      store(1, hn::InterleaveUpper(dw, low01, low23));
      store(2, hn::InterleaveLower(dw, high01, high23));
      store(3, hn::InterleaveUpper(dw, high01, high23));
    }
  }
}
#endif

template <class Packer>
void PackLines(const PackLinesArgs& args) {
  HWY_ALIGN float tile[kMaxPackSteps * kPanelWidth];
  Transpose(args, tile);
  for (int64_t column = 0; column < kPanelWidth; column += kLanes) {
    const VF scales = Packer::Pack({tile + column, args.steps},
                                   args.lines + column * Packer::kColumnBytes,
                                   args.zero_points + column);
    hn::StoreU(scales, DF(), args.scales + column);
  }
}

void FillPackLinesOfTarget(Kernels& kernels) {
  const auto fill = [&](WeightFormat format, PackLinesFn pack) {
    kernels.pack_lines[static_cast<int>(format)] = pack;
  };
  fill(WeightFormat::kF32, &PackLines<F32Packer>);
  fill(WeightFormat::kBF16, &PackLines<BF16Packer>);
  fill(WeightFormat::kF16, &PackLines<F16Packer>);
  fill(WeightFormat::kInt8, &PackLines<Int8Packer>);
  fill(WeightFormat::kInt4, &PackLines<Int4Packer>);
  fill(WeightFormat::kFp8, &PackLines<Fp8Packer>);
  fill(WeightFormat::kMxfp4, &PackLines<Mxfp4Packer>);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(FillPackLinesOfTarget);
void FillPackLines(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(FillPackLinesOfTarget)(kernels);
}

}  // namespace moe
#endif

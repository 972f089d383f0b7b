#include "tests/experts/kernels/reference_packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "experts/base/check.h"

namespace moe {
namespace {

// Steps read from the source at a time: 16 rows of them stay in the L1 cache.
constexpr int64_t kChunk = 512;
// Groups whose weights are all smaller become zero, so that no scale is
// subnormal and its inverse is finite.
constexpr float kTiny = 0x1p-100F;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T>
void Store(uint8_t* dst, T value) {
  std::memcpy(dst, &value, sizeof(T));
}

// Largest magnitude, or NaN if one weight is not finite.
float AbsMax(const float* w, int64_t steps) {
  float max = 0;
  float sum = 0;
  for (int64_t i = 0; i < steps; ++i) {
    max = std::max(max, std::fabs(w[i]));
    sum += w[i] * 0.0F;
  }
  return std::isnan(sum) ? kNaN : max;
}

// The smallest bf16 that is not below the positive `value`.
float RoundUpToBF16(float value) {
  return BF16ToFloat(
      static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0xffffU) >> 16));
}

// Nearest E4M3 value, ties to even. Requires: |value| <= 448.
uint8_t FloatToF8E4M3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = (bits >> 24) & 0x80U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < 0x3c800000U) {  // below 2^-6: adding 2^14 rounds at 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) -
                                        std::bit_cast<uint32_t>(0x1p14F)));
  }
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

// Nearest E2M1 value, ties to even, saturating.
uint8_t FloatToF4E2M1(float value) {
  const float x = std::fabs(value);
  const int magnitude = (x > 0.25F) + (x >= 0.75F) + (x > 1.25F) +
                        (x >= 1.75F) + (x > 2.5F) + (x >= 3.5F) + (x > 5.0F);
  return static_cast<uint8_t>((std::signbit(value) ? 8 : 0) | magnitude);
}

// Each quantiser finds the scale of one column of a group and writes its codes.
float QuantiseInt8(const float* w, int64_t steps, uint8_t* codes) {
  const float max = AbsMax(w, steps);
  const float scale = max < kTiny ? 0.0F
                      : max > 0   ? RoundUpToBF16(max / 127.0F)
                                  : kNaN;
  const float inverse = max >= kTiny ? 1.0F / scale : 0.0F;
  for (int64_t i = 0; i < steps; ++i) {
    const float q = inverse == 0.0F ? 0.0F : w[i] * inverse;
    codes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::lrintf(q)));
  }
  return scale;
}

float RoundToBF16(float value) { return BF16ToFloat(FloatToBF16(value)); }

// The pair with the least squared error is taken, from five scales and zero
// points and the scales that fit their codes best. Three spread the codes over
// the range of the weights and zero; two give the extreme weight 8 and 7 steps.
float QuantiseInt4(const float* w, int64_t steps, uint8_t* codes,
                   uint8_t& zero_point) {
  const float max = AbsMax(w, steps);
  zero_point = 8;
  if (!(max >= kTiny)) {
    std::fill_n(codes, steps, uint8_t{8});
    return max < kTiny ? 0.0F : kNaN;
  }
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < steps; ++i) {
    low = std::min(low, w[i]);
    high = std::max(high, w[i]);
  }
  const auto steps_of = [](float value, float zero) {
    return std::nearbyintf(std::clamp(value, -zero, 15.0F - zero));
  };
  float best_scale = 0;
  float best_zero = 0;
  float best_error = std::numeric_limits<float>::infinity();
  // Returns the scale that would suit the codes best, by least squares.
  const auto consider = [&](float scale, float zero) {
    const float inverse = 1.0F / scale;
    float error = 0;
    float products = 0;
    float squares = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const float c = steps_of(w[i] * inverse, zero);
      const float off = w[i] * inverse - c;
      error += off * off;
      products += w[i] * c;
      squares += c * c;
    }
    error *= (scale / max) * (scale / max);
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
      best_zero = zero;
    }
    return RoundToBF16(products / squares);
  };
  const auto consider_with_fit = [&](float scale, float zero) {
    const float fitted = consider(scale, zero);
    if (std::fabs(fitted) >= kTiny / 16) consider(fitted, zero);
  };
  for (const float range : {15.5F, 14.5F, 16.5F}) {
    const float scale = RoundToBF16(high / range - low / range);
    const float middle = (high * 0.5F + low * 0.5F) / scale;
    consider_with_fit(scale,
                      std::clamp(std::nearbyintf(7.5F - middle), 0.0F, 15.0F));
  }
  for (const float range : {8.0F, 7.0F}) {
    consider_with_fit(RoundToBF16(max / range), high == max ? 7.0F : 8.0F);
  }
  const float inverse = 1.0F / best_scale;
  for (int64_t i = 0; i < steps; ++i) {
    codes[i] =
        static_cast<uint8_t>(steps_of(w[i] * inverse, best_zero) + best_zero);
  }
  zero_point = static_cast<uint8_t>(best_zero);
  return best_scale;
}

float QuantiseFp8(const float* w, int64_t steps, uint8_t* codes) {
  const float max = AbsMax(w, steps);
  if (!(max >= kTiny)) {
    std::fill_n(codes, steps, uint8_t{0});
    return max < kTiny ? 0.0F : kNaN;
  }
  const float scale = max / 448.0F;
  for (int64_t i = 0; i < steps; ++i) {
    codes[i] = FloatToF8E4M3(std::clamp(w[i] / scale, -448.0F, 448.0F));
  }
  return scale;
}

// The OCP recipe: the extreme weight gets the largest exponent.
float QuantiseMxfp4(const float* w, int64_t steps, uint8_t* codes) {
  const float max = AbsMax(w, steps);
  if (!(max >= kTiny)) {
    std::fill_n(codes, steps, uint8_t{0});
    return max < kTiny ? 1.0F : kNaN;
  }
  const float scale = std::ldexp(1.0F, std::ilogb(max) - 2);
  for (int64_t i = 0; i < steps; ++i) codes[i] = FloatToF4E2M1(w[i] / scale);
  return scale;
}

float Quantise(WeightFormat format, const float* w, int64_t steps,
               uint8_t* codes, uint8_t& zero_point) {
  switch (format) {
    case WeightFormat::kInt8:
      return QuantiseInt8(w, steps, codes);
    case WeightFormat::kInt4:
      return QuantiseInt4(w, steps, codes, zero_point);
    case WeightFormat::kFp8:
      return QuantiseFp8(w, steps, codes);
    case WeightFormat::kMxfp4:
      return QuantiseMxfp4(w, steps, codes);
    default:
      MOE_CHECK(false);
  }
  return 0;
}

void StoreScale(DType dtype, float scale, int64_t column, uint8_t* dst) {
  switch (dtype) {
    case DType::kF32:
      return Store(dst + column * 4, scale);
    case DType::kBF16:
      return Store(dst + column * 2, FloatToBF16(scale));
    case DType::kF16:
      return Store(dst + column * 2, FloatToF16(scale));
    case DType::kF8E8M0:
      dst[column] = std::isnan(scale)
                        ? uint8_t{0xff}
                        : static_cast<uint8_t>(std::ilogb(scale) + 127);
      return;
    default:
      MOE_CHECK(false);
  }
}

// What is in front of the group's first line.
void StoreHeader(const PackedLayout& layout, float scale, int zero_point,
                 int64_t column, uint8_t* line) {
  uint8_t* header = line - layout.header_bytes();
  StoreScale(layout.scale_dtype, scale, column, header);
  if (layout.zero_points) {
    header[kPanelWidth * DTypeBytes(layout.scale_dtype) + column] =
        static_cast<uint8_t>(static_cast<int8_t>(zero_point - 8));
  }
}

// The code that stands for zero.
uint8_t ZeroCode(WeightFormat format) {
  return format == WeightFormat::kInt4 ? 8 : 0;
}

// Writes codes of one column into consecutive lines from `line` on; `steps` is
// a whole number of lines.
void StoreCodes(WeightFormat format, const uint8_t* codes, int64_t steps,
                int64_t column, uint8_t* line) {
  if (format == WeightFormat::kInt4 || format == WeightFormat::kMxfp4) {
    for (int64_t i = 0; i < steps; i += 8) {
      uint32_t word = 0;
      for (int j = 0; j < 8; ++j) {
        word |= static_cast<uint32_t>(codes[i + j] & 0xfU) << (4 * j);
      }
      Store(line + i / 8 * kLineBytes + column * 4, word);
    }
  } else if (format == WeightFormat::kInt8) {
    for (int64_t i = 0; i < steps; i += 4) {
      std::memcpy(line + i / 4 * kLineBytes + column * 4, codes + i, 4);
    }
  } else {
    for (int64_t i = 0; i < steps; ++i) {
      line[i * kPanelWidth + column] = codes[i];
    }
  }
}

// Packs floats in formats without scales.
void StoreFloats(WeightFormat format, const float* w, int64_t steps,
                 int64_t column, uint8_t* line) {
  switch (format) {
    case WeightFormat::kF32:
      for (int64_t i = 0; i < steps; ++i) {
        Store(line + i * kLineBytes + column * 4, w[i]);
      }
      return;
    case WeightFormat::kBF16:
      for (int64_t i = 0; i < steps; ++i) {
        Store(line + i / 2 * kLineBytes + column * 4 + i % 2 * 2,
              FloatToBF16(w[i]));
      }
      return;
    case WeightFormat::kF16:
      for (int64_t i = 0; i < steps; ++i) {
        Store(line + (i * kPanelWidth + column) * 2, FloatToF16(w[i]));
      }
      return;
    default:
      MOE_CHECK(false);
  }
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void ReferencePackPanel(const PackedLayout& layout, RowReader read,
                        int64_t panel, uint8_t* dst) {
  const int64_t unit = layout.has_scales() ? layout.group : kChunk;
  MOE_CHECK(kChunk % unit == 0);
  const int64_t steps_per_line = layout.steps_per_line();
  const int64_t first = panel * kPanelWidth;
  const int64_t columns = std::min(kPanelWidth, layout.n - first);
  std::array<float, kChunk> w;
  std::array<uint8_t, kChunk> codes;
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    for (int64_t k = 0; k < layout.k; k += kChunk) {
      const int64_t chunk = std::min(kChunk, layout.k - k);
      const int64_t padded = RoundUp(chunk, steps_per_line);
      std::fill(w.begin() + (column < columns ? chunk : 0), w.begin() + padded,
                0.0F);
      if (column < columns) {
        read(first + column, k, absl::MakeSpan(w.data(), chunk));
      }
      for (int64_t i = 0; i < padded; i += unit) {
        const int64_t steps = std::min(unit, padded - i);
        uint8_t* line = dst + layout.line_offset(k + i);
        if (!layout.has_scales()) {
          StoreFloats(layout.format, w.data() + i, steps, column, line);
          continue;
        }
        uint8_t zero_point = 8;
        const float scale = Quantise(layout.format, w.data() + i, steps,
                                     codes.data(), zero_point);
        StoreHeader(layout, scale, zero_point, column, line);
        StoreCodes(layout.format, codes.data(), steps, column, line);
      }
    }
  }
}

void ReferencePackCodedPanel(const PackedLayout& layout, CodeOf code,
                             ScaleReader scale, ZeroPointReader zero_point,
                             int64_t panel, uint8_t* dst) {
  MOE_CHECK(layout.has_scales());
  const int64_t steps_per_line = layout.steps_per_line();
  const int64_t first = panel * kPanelWidth;
  const int64_t columns = std::min(kPanelWidth, layout.n - first);
  const uint8_t zero = ZeroCode(layout.format);
  std::array<uint8_t, kChunk> buffer;
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    for (int64_t k = 0; k < layout.k; k += layout.group) {
      const int64_t end = std::min(k + layout.group, layout.k);
      bool has_nan = false;
      for (int64_t i = k; i < end; i += kChunk) {
        const int64_t chunk = std::min(kChunk, end - i);
        const int64_t padded = RoundUp(chunk, steps_per_line);
        std::fill_n(buffer.begin(), padded, zero);
        if (column < columns) {
          for (int64_t j = 0; j < chunk; ++j) {
            buffer[j] = code(first + column, i + j);
          }
        }
        if (layout.format == WeightFormat::kFp8) {
          for (int64_t j = 0; j < chunk; ++j) {
            has_nan |= (buffer[j] & 0x7fU) == 0x7fU;
          }
        }
        StoreCodes(layout.format, buffer.data(), padded, column,
                   dst + layout.line_offset(i));
      }
      // The kernels don't know E4M3's NaN; a NaN scale has the same effect.
      const float value = has_nan            ? kNaN
                          : column < columns ? scale(first + column, k)
                                             : 1.0F;
      StoreHeader(layout, value,
                  column < columns ? zero_point(first + column, k) : 8, column,
                  dst + layout.line_offset(k));
    }
  }
}

}  // namespace moe

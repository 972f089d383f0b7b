#include "experts/kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "experts/base/check.h"
#include "experts/kernels/kernels.h"

namespace moe {
namespace {

// Steps read from the source at a time: 16 rows of them stay in the L1 cache.
constexpr int64_t kChunk = kMaxPackSteps;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T>
void Store(uint8_t* dst, T value) {
  std::memcpy(dst, &value, sizeof(T));
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
      // The exponent of a power of two, down to 2^-127; that of NaN is 0xff.
      dst[column] = static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
      return;
    default:
      MOE_CHECK(false);
  }
}

float LoadScale(DType dtype, int64_t column, const uint8_t* src) {
  switch (dtype) {
    case DType::kF32:
      return LoadUnaligned<float>(src + column * 4);
    case DType::kBF16:
      return BF16ToFloat(LoadUnaligned<uint16_t>(src + column * 2));
    case DType::kF16:
      return F16ToFloat(LoadUnaligned<uint16_t>(src + column * 2));
    default:
      return F8E8M0ToFloat(src[column]);
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

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

PackedLayout PackedLayout::For(WeightFormat format, int64_t n, int64_t k) {
  MOE_CHECK(format != WeightFormat::kAuto);
  PackedLayout layout{.format = format, .n = n, .k = k};
  switch (format) {
    case WeightFormat::kInt8:
      layout.group = 128;
      layout.scale_dtype = DType::kBF16;
      break;
    case WeightFormat::kFp8:
      layout.group = 128;
      layout.scale_dtype = DType::kF32;
      break;
    case WeightFormat::kInt4:
      layout.group = 32;
      layout.scale_dtype = DType::kBF16;
      break;
    case WeightFormat::kMxfp4:
      layout.group = 32;
      layout.scale_dtype = DType::kF8E8M0;
      break;
    default:
      break;
  }
  return layout;
}

int64_t PackedLayout::steps_per_line() const {
  switch (format) {
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return 2;
    case WeightFormat::kInt8:
    case WeightFormat::kFp8:
      return 4;
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4:
      return 8;
    default:
      return 1;
  }
}

int64_t PackedLayout::block() const {
  if (group == 0) return 0;
  return group % 128 == 0 || group >= k ? 128 : group % 64 == 0 ? 64 : 32;
}

int64_t PackedLayout::groups() const {
  return group > 0 ? (k + group - 1) / group : 0;
}

int64_t PackedLayout::scale_bytes() const {
  return group > 0 ? kPanelWidth * DTypeBytes(scale_dtype) : 0;
}

int64_t PackedLayout::line_offset(int64_t step) const {
  const int64_t scales = group > 0 ? (step / group + 1) * scale_bytes() : 0;
  return scales + step / steps_per_line() * kLineBytes;
}

int64_t PackedLayout::panel_bytes() const {
  return groups() * scale_bytes() +
         (k + steps_per_line() - 1) / steps_per_line() * kLineBytes;
}

void PackPanel(const PackedLayout& layout, RowReader read, int64_t panel,
               uint8_t* dst) {
  PackPanel(layout, read, panel, dst, BestKernels());
}

void PackPanel(const PackedLayout& layout, RowReader read, int64_t panel,
               uint8_t* dst, const Kernels& kernels) {
  const int64_t unit = layout.has_scales() ? layout.group : kChunk;
  MOE_CHECK(kChunk % unit == 0);
  const PackLinesFn pack_lines =
      kernels.pack_lines[static_cast<int>(layout.format)];
  const int64_t steps_per_line = layout.steps_per_line();
  const int64_t first = panel * kPanelWidth;
  const int64_t columns = std::min(kPanelWidth, layout.n - first);
  alignas(64) std::array<float, kPanelWidth * kChunk> rows;  // [16][kChunk]
  std::array<float, kPanelWidth> scales;
  std::fill(rows.begin() + columns * kChunk, rows.end(), 0.0F);
  for (int64_t k = 0; k < layout.k; k += kChunk) {
    const int64_t chunk = std::min(kChunk, layout.k - k);
    for (int64_t column = 0; column < columns; ++column) {
      float* row = rows.data() + column * kChunk;
      read(first + column, k, absl::MakeSpan(row, chunk));
      std::fill(row + chunk, row + kChunk, 0.0F);
    }
    for (int64_t i = 0; i < chunk; i += unit) {
      uint8_t* lines = dst + layout.line_offset(k + i);
      pack_lines({.rows = rows.data() + i,
                  .row_stride = kChunk,
                  .steps = std::min(unit, RoundUp(chunk - i, steps_per_line)),
                  .scales = scales.data(),
                  .lines = lines});
      if (!layout.has_scales()) continue;
      for (int64_t column = 0; column < kPanelWidth; ++column) {
        StoreScale(layout.scale_dtype, scales[column], column,
                   lines - layout.scale_bytes());
      }
    }
  }
}

void PackCodedPanel(const PackedLayout& layout, CodeReader codes,
                    ScaleReader scale, int64_t panel, uint8_t* dst) {
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
          codes(first + column, i, absl::MakeSpan(buffer.data(), chunk));
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
      StoreScale(layout.scale_dtype, value, column,
                 dst + layout.line_offset(k) - layout.scale_bytes());
    }
  }
}

float UnpackedElement(const PackedLayout& layout, const uint8_t* panel,
                      int64_t column, int64_t step) {
  const uint8_t* line = panel + layout.line_offset(step);
  const int64_t j = step % layout.steps_per_line();
  float code = 0;
  switch (layout.format) {
    case WeightFormat::kBF16:
      return BF16ToFloat(LoadUnaligned<uint16_t>(line + column * 4 + j * 2));
    case WeightFormat::kF16:
      return F16ToFloat(
          LoadUnaligned<uint16_t>(line + (j * kPanelWidth + column) * 2));
    case WeightFormat::kInt8:
      code = static_cast<int8_t>(line[column * 4 + j]);
      break;
    case WeightFormat::kFp8:
      code = F8E4M3ToFloat(line[j * kPanelWidth + column]);
      break;
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4: {
      const uint32_t word = LoadUnaligned<uint32_t>(line + column * 4);
      const auto nibble = static_cast<uint8_t>((word >> (4 * j)) & 0xfU);
      code = layout.format == WeightFormat::kInt4
                 ? static_cast<float>(nibble) - 8.0F
                 : F4E2M1ToFloat(nibble);
      break;
    }
    default:
      return LoadUnaligned<float>(line + column * 4);
  }
  const uint8_t* scales =
      panel + layout.line_offset(step / layout.group * layout.group) -
      layout.scale_bytes();
  return code * LoadScale(layout.scale_dtype, column, scales);
}

}  // namespace moe

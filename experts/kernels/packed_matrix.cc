#include "experts/kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "experts/base/check.h"
#include "experts/base/rounding.h"
#include "experts/kernels/kernels.h"

namespace moe {
namespace {

// Steps read from the source at a time: 16 rows of them stay in the L1 cache.
constexpr int64_t kChunk = kMaxPackSteps;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// The code of int4 that stands for zero where there are no zero points.
constexpr uint8_t kMiddle = 8;

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

// The scales of a group, and its zero points where the layout has them.
void StoreHeader(const PackedLayout& layout,
                 const std::array<float, kPanelWidth>& scales,
                 const std::array<uint8_t, kPanelWidth>& zero_points,
                 uint8_t* dst) {
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    StoreScale(layout.scale_dtype, scales[column], column, dst);
  }
  if (layout.zero_points) {
    std::transform(zero_points.begin(), zero_points.end(),
                   dst + kPanelWidth * DTypeBytes(layout.scale_dtype),
                   [](uint8_t zero_point) {
                     return static_cast<uint8_t>(zero_point - kMiddle);
                   });
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

// Codes of 16 rows, a row every kChunk bytes: as they come from a CodeReader,
// and what pads them.
struct CodeBlock {
  uint8_t* Row(int64_t row) { return codes.data() + row * kChunk; }
  const uint8_t* Row(int64_t row) const { return codes.data() + row * kChunk; }

  alignas(64) std::array<uint8_t, kPanelWidth * kChunk> codes;
};

// Pads `count` codes of a row with those of zero up to kChunk codes.
void PadCodes(WeightFormat format, int64_t count, uint8_t* row) {
  if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8) {
    std::fill(row + count, row + kChunk, uint8_t{0});
    return;
  }
  const uint8_t zeros = format == WeightFormat::kInt4 ? 0x88 : 0;
  if (count % 2 != 0) {
    row[count / 2] =
        static_cast<uint8_t>((row[count / 2] & 0xfU) | (zeros & 0xf0U));
  }
  std::fill(row + (count + 1) / 2, row + kChunk / 2, zeros);
}

// Writes the codes of `steps` steps, a whole number of lines.
void StoreCodes(const PackedLayout& layout, const CodeBlock& block,
                int64_t steps, uint8_t* lines) {
  if (layout.format == WeightFormat::kFp8) {
    for (int64_t i = 0; i < steps; ++i) {
      for (int64_t column = 0; column < kPanelWidth; ++column) {
        lines[i * kPanelWidth + column] = block.Row(column)[i];
      }
    }
    return;
  }
  // The word of a column is what its row has there.
  const int64_t num_lines = steps / layout.steps_per_line();
  for (int64_t line = 0; line < num_lines; ++line) {
    for (int64_t column = 0; column < kPanelWidth; ++column) {
      std::memcpy(lines + line * kLineBytes + column * 4,
                  block.Row(column) + line * 4, 4);
    }
  }
}

// Requires: E4M3 codes.
bool HasNaN(const uint8_t* codes, int64_t count) {
  uint8_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= static_cast<uint8_t>((codes[i] & 0x7fU) + 1);
  }
  return (found & 0x80U) != 0;
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
      layout.zero_points = true;
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

int64_t PackedLayout::header_bytes() const {
  return group > 0 ? GroupHeaderBytes(scale_dtype, zero_points) : 0;
}

int64_t PackedLayout::line_offset(int64_t step) const {
  const int64_t headers = group > 0 ? (step / group + 1) * header_bytes() : 0;
  return headers + step / steps_per_line() * kLineBytes;
}

int64_t PackedLayout::panel_bytes() const {
  return groups() * header_bytes() +
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
  std::array<uint8_t, kPanelWidth> zero_points;
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
                  .zero_points = zero_points.data(),
                  .lines = lines});
      if (layout.has_scales()) {
        StoreHeader(layout, scales, zero_points, lines - layout.header_bytes());
      }
    }
  }
}

void PackCodedPanel(const PackedLayout& layout, CodeReader read,
                    ScaleReader scale, ZeroPointReader zero_point,
                    int64_t panel, uint8_t* dst) {
  MOE_CHECK(layout.has_scales());
  const int64_t steps_per_line = layout.steps_per_line();
  const int64_t first = panel * kPanelWidth;
  const int64_t columns = std::min(kPanelWidth, layout.n - first);
  CodeBlock block;
  for (int64_t column = columns; column < kPanelWidth; ++column) {
    PadCodes(layout.format, 0, block.Row(column));
  }
  for (int64_t k = 0; k < layout.k; k += layout.group) {
    const int64_t end = std::min(k + layout.group, layout.k);
    std::array<bool, kPanelWidth> has_nan = {};
    for (int64_t i = k; i < end; i += kChunk) {
      const int64_t chunk = std::min(kChunk, end - i);
      for (int64_t column = 0; column < columns; ++column) {
        uint8_t* row = block.Row(column);
        read(first + column, i, chunk, row);
        PadCodes(layout.format, chunk, row);
        has_nan[column] |=
            layout.format == WeightFormat::kFp8 && HasNaN(row, chunk);
      }
      StoreCodes(layout, block, RoundUp(chunk, steps_per_line),
                 dst + layout.line_offset(i));
    }
    std::array<float, kPanelWidth> scales;
    std::array<uint8_t, kPanelWidth> zero_points;
    scales.fill(1.0F);
    zero_points.fill(kMiddle);
    for (int64_t column = 0; column < columns; ++column) {
      // The kernels don't know E4M3's NaN; a NaN scale has the same effect.
      scales[column] = has_nan[column] ? kNaN : scale(first + column, k);
      if (layout.zero_points) {
        zero_points[column] =
            static_cast<uint8_t>(zero_point(first + column, k));
      }
    }
    StoreHeader(layout, scales, zero_points,
                dst + layout.line_offset(k) - layout.header_bytes());
  }
}

float UnpackedElement(const PackedLayout& layout, const uint8_t* panel,
                      int64_t column, int64_t step) {
  const uint8_t* line = panel + layout.line_offset(step);
  const int64_t j = step % layout.steps_per_line();
  const auto header = [&] {
    return panel + layout.line_offset(step / layout.group * layout.group) -
           layout.header_bytes();
  };
  const auto scale = [&] {
    return LoadScale(layout.scale_dtype, column, header());
  };
  const auto nibble = [&] {
    const uint32_t word = LoadUnaligned<uint32_t>(line + column * 4);
    return static_cast<uint8_t>((word >> (4 * j)) & 0xfU);
  };
  switch (layout.format) {
    case WeightFormat::kBF16:
      return BF16ToFloat(LoadUnaligned<uint16_t>(line + column * 4 + j * 2));
    case WeightFormat::kF16:
      return F16ToFloat(
          LoadUnaligned<uint16_t>(line + (j * kPanelWidth + column) * 2));
    case WeightFormat::kInt8:
      return static_cast<float>(static_cast<int8_t>(line[column * 4 + j])) *
             scale();
    case WeightFormat::kFp8:
      return F8E4M3ToFloat(line[j * kPanelWidth + column]) * scale();
    case WeightFormat::kMxfp4:
      return F4E2M1ToFloat(nibble()) * scale();
    case WeightFormat::kInt4: {
      int zero_point = kMiddle;
      if (layout.zero_points) {
        zero_point += static_cast<int8_t>(
            header()[kPanelWidth * DTypeBytes(layout.scale_dtype) + column]);
      }
      return static_cast<float>(nibble() - zero_point) * scale();
    }
    default:
      return LoadUnaligned<float>(line + column * 4);
  }
}

}  // namespace moe

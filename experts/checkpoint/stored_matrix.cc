#include "experts/checkpoint/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "experts/base/check.h"

namespace moe {
namespace {

bool HasNibbles(StoredCoding coding) {
  return coding != StoredCoding::kPlain && coding != StoredCoding::kScaled;
}

// out[i] = convert(element at i * stride), elements of type Bits.
template <typename Bits, typename Convert>
void Widen(const uint8_t* source, int64_t stride, absl::Span<float> out,
           Convert convert) {
  const auto widen = [&](auto step) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = convert(LoadUnaligned<Bits>(source + i * step * sizeof(Bits)));
    }
  };
  if (stride == 1) {
    widen(std::integral_constant<size_t, 1>());  // known: it vectorises
  } else {
    widen(static_cast<size_t>(stride));
  }
}

// The values of all codes: faster than computing each.
const std::array<float, 256>& F8E4M3Values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table;
    for (int code = 0; code < 256; ++code) {
      table[code] = F8E4M3ToFloat(static_cast<uint8_t>(code));
    }
    return table;
  }();
  return values;
}

void WidenElements(DType dtype, const uint8_t* source, int64_t stride,
                   absl::Span<float> out) {
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(source, stride, out, [](float v) { return v; });
    case DType::kF64:
      return Widen<double>(source, stride, out,
                           [](double v) { return static_cast<float>(v); });
    case DType::kBF16:
      return Widen<uint16_t>(source, stride, out, BF16ToFloat);
    case DType::kF16:
      return Widen<uint16_t>(source, stride, out, F16ToFloat);
    case DType::kF8E4M3:
      return Widen<uint8_t>(
          source, stride, out,
          [table = F8E4M3Values().data()](uint8_t v) { return table[v]; });
    case DType::kF8E8M0:
      return Widen<uint8_t>(source, stride, out, F8E8M0ToFloat);
    default:
      MOE_CHECK(false);  // Builders let no other dtype pass.
  }
}

// The values of the 16 codes of a 4-bit element.
const std::array<float, 16>& NibbleValues(StoredCoding coding) {
  static const auto table = [](auto value) {
    std::array<float, 16> values;
    for (uint8_t code = 0; code < 16; ++code) values[code] = value(code);
    return values;
  };
  static const std::array<float, 16> mxfp4 = table(F4E2M1ToFloat);
  static const std::array<float, 16> int4 =
      table([](uint8_t code) { return static_cast<float>(code) - 8.0F; });
  return coding == StoredCoding::kMxfp4 ? mxfp4 : int4;
}

// out[i] = convert(nibble at index first + i), the nibbles one after the other.
template <typename T, typename Convert>
void ReadNibbles(const uint8_t* source, int64_t first, absl::Span<T> out,
                 Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t nibble = first + static_cast<int64_t>(i);
    out[i] = convert((source[nibble / 2] >> (nibble % 2 * 4)) & 0xf);
  }
}

// As ReadNibbles, with the groups of eight nibbles `stride` nibbles apart.
template <typename T, typename Convert>
void ReadGroupedNibbles(const uint8_t* source, int64_t first, int64_t stride,
                        absl::Span<T> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t index = first + static_cast<int64_t>(i);
    const int64_t nibble = index / 8 * stride + index % 8;
    out[i] = convert((source[nibble / 2] >> (nibble % 2 * 4)) & 0xf);
  }
}

// How many scales serve indices [0, size) of an axis.
int64_t ScalesAlong(const ScaleAxis& axis, int64_t size) {
  if (axis.stride == 0 || size == 0) return std::min<int64_t>(size, 1);
  return std::min(size, axis.Number(size - 1) - axis.Number(0) + 1);
}

}  // namespace

void StoredMatrix::Read(int64_t row, int64_t col, absl::Span<float> out) const {
  const auto count = static_cast<int64_t>(out.size());
  MOE_DCHECK(row >= 0 && row < rows && col >= 0 && col + count <= cols);
  if (!HasNibbles(coding)) {
    const int64_t first = row * row_stride + col * col_stride;
    WidenElements(dtype, data + first * DTypeBytes(dtype), col_stride, out);
  } else {
    const auto value = [&values = NibbleValues(coding)](int code) {
      return values[static_cast<size_t>(code)];
    };
    const uint8_t* source = data + row * row_stride / 2;
    if (coding == StoredCoding::kGptq4) {
      ReadGroupedNibbles(source, col, col_stride, out, value);
    } else {
      ReadNibbles(source, col, out, value);
    }
  }
  if (coding == StoredCoding::kPlain) return;

  // One scale at a time, over the columns that share it.
  for (int64_t begin = 0; begin < count;) {
    const int64_t number = scale_cols.Number(col + begin);
    int64_t end = count;
    if (scale_cols.stride != 0) {
      // The first index with (offset + index * step) / block > number.
      const int64_t next = ((number + 1) * scale_cols.block -
                            scale_cols.offset + scale_cols.step - 1) /
                           scale_cols.step;
      end = std::min(count, next - col);
    }
    const float scale = Scale(row, col + begin);
    for (int64_t i = begin; i < end; ++i) out[i] *= scale;
    begin = end;
  }
}

void StoredMatrix::ReadCodes(int64_t row, int64_t col,
                             absl::Span<uint8_t> out) const {
  MOE_DCHECK(coding != StoredCoding::kPlain);
  MOE_DCHECK(row >= 0 && row < rows && col >= 0 &&
             col + static_cast<int64_t>(out.size()) <= cols);
  const auto code = [](int nibble) { return static_cast<uint8_t>(nibble); };
  if (coding == StoredCoding::kScaled) {
    const uint8_t* source = data + row * row_stride + col * col_stride;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = source[static_cast<int64_t>(i) * col_stride];
    }
  } else if (coding == StoredCoding::kGptq4) {
    ReadGroupedNibbles(data + row * row_stride / 2, col, col_stride, out, code);
  } else {
    ReadNibbles(data + row * row_stride / 2, col, out, code);
  }
}

float StoredMatrix::Scale(int64_t row, int64_t col) const {
  const int64_t index = scale_rows.Number(row) * scale_rows.stride +
                        scale_cols.Number(col) * scale_cols.stride;
  float scale = 0;
  WidenElements(scale_dtype, scales + index * DTypeBytes(scale_dtype), 1,
                absl::MakeSpan(&scale, 1));
  return scale;
}

StoredMatrix StoredMatrix::Rows(int64_t first, int64_t count,
                                int64_t step) const {
  MOE_CHECK(first >= 0 && count >= 0 && step >= 1);
  MOE_CHECK(count == 0 || first + (count - 1) * step < rows);
  StoredMatrix part = *this;
  part.rows = count;
  part.row_stride = row_stride * step;
  // A row of nibbles fills whole bytes, and kGptq4's rows are eight apart.
  part.data += HasNibbles(coding) ? first * row_stride / 2
                                  : first * row_stride * DTypeBytes(dtype);
  part.scale_rows.offset += first * scale_rows.step;
  part.scale_rows.step *= step;
  return part;
}

StoredMatrix StoredMatrix::Cols(int64_t first, int64_t count,
                                int64_t step) const {
  return Transposed().Rows(first, count, step).Transposed();
}

StoredMatrix StoredMatrix::Transposed() const {
  MOE_CHECK(!HasNibbles(coding));
  StoredMatrix turned = *this;
  std::swap(turned.rows, turned.cols);
  std::swap(turned.row_stride, turned.col_stride);
  std::swap(turned.scale_rows, turned.scale_cols);
  return turned;
}

int64_t StoredMatrix::bytes() const {
  const int64_t elements = rows * cols;
  if (coding == StoredCoding::kPlain) return elements * DTypeBytes(dtype);
  const int64_t scale_bytes = ScalesAlong(scale_rows, rows) *
                              ScalesAlong(scale_cols, cols) *
                              DTypeBytes(scale_dtype);
  return scale_bytes +
         (HasNibbles(coding) ? elements / 2 : elements * DTypeBytes(dtype));
}

absl::Span<const uint8_t> StoredMatrix::DataExtent() const {
  if (rows == 0 || cols == 0) return {};
  if (!HasNibbles(coding)) {
    const int64_t last = (rows - 1) * row_stride + (cols - 1) * col_stride;
    return absl::MakeConstSpan(
        data, static_cast<size_t>((last + 1) * DTypeBytes(dtype)));
  }
  const int64_t last_column = coding == StoredCoding::kGptq4
                                  ? (cols - 1) / 8 * col_stride + (cols - 1) % 8
                                  : cols - 1;
  const int64_t last = (rows - 1) * row_stride + last_column;
  return absl::MakeConstSpan(data, static_cast<size_t>(last / 2 + 1));
}

absl::Span<const uint8_t> StoredMatrix::ScaleExtent() const {
  if (rows == 0 || cols == 0 || coding == StoredCoding::kPlain) return {};
  const auto index = [this](int64_t row, int64_t col) {
    return scale_rows.Number(row) * scale_rows.stride +
           scale_cols.Number(col) * scale_cols.stride;
  };
  const int64_t size = DTypeBytes(scale_dtype);
  const int64_t first = index(0, 0);
  const int64_t last = index(rows - 1, cols - 1);
  return absl::MakeConstSpan(scales + first * size,
                             static_cast<size_t>((last + 1 - first) * size));
}

}  // namespace moe

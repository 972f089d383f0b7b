#include "experts/checkpoint/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "experts/base/check.h"

namespace moe {
namespace {

constexpr int64_t kNibblesPerGroup = 8;  // of kGptq4: an I32

// Edge of the squares in which a transposed matrix is read: a row of BF16 is a
// cache line, and all of it fits the innermost cache.
constexpr int64_t kTile = 32;

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
  // Lambdas, not the functions themselves: calls of those are not inlined.
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(source, stride, out, [](float v) { return v; });
    case DType::kF64:
      return Widen<double>(source, stride, out,
                           [](double v) { return static_cast<float>(v); });
    case DType::kBF16:
      return Widen<uint16_t>(source, stride, out,
                             [](uint16_t v) { return BF16ToFloat(v); });
    case DType::kF16:
      return Widen<uint16_t>(source, stride, out,
                             [](uint16_t v) { return F16ToFloat(v); });
    case DType::kF8E4M3:
      return Widen<uint8_t>(
          source, stride, out,
          [table = F8E4M3Values().data()](uint8_t v) { return table[v]; });
    case DType::kF8E8M0:
      return Widen<uint8_t>(source, stride, out,
                            [](uint8_t v) { return F8E8M0ToFloat(v); });
    default:
      MOE_CHECK(false);  // Builders let no other dtype pass.
  }
}

// What the two nibbles of every byte stand for, low one first.
template <typename T>
using NibbleTable = std::array<std::array<T, 2>, 256>;

template <typename Value>
auto MakeNibbleTable(Value value) {
  NibbleTable<decltype(value(uint8_t{0}))> table;
  for (size_t byte = 0; byte < 256; ++byte) {
    table[byte] = {value(static_cast<uint8_t>(byte & 0xf)),
                   value(static_cast<uint8_t>(byte >> 4))};
  }
  return table;
}

const NibbleTable<float>& NibbleValues(StoredCoding coding) {
  static const auto mxfp4 = MakeNibbleTable(F4E2M1ToFloat);
  static const auto int4 = MakeNibbleTable(
      [](uint8_t code) { return static_cast<float>(code) - 8.0F; });
  return coding == StoredCoding::kMxfp4 ? mxfp4 : int4;
}

// out[i] = what nibble first + i stands for.
template <typename T>
void ReadNibbles(const NibbleTable<T>& values, const uint8_t* source,
                 int64_t first, absl::Span<T> out) {
  source += first / 2;
  if (first % 2 != 0 && !out.empty()) {
    out[0] = values[*source++][1];
    out.remove_prefix(1);
  }
  for (; out.size() >= 2; out.remove_prefix(2)) {
    std::memcpy(out.data(), values[*source++].data(), 2 * sizeof(T));
  }
  if (!out.empty()) out[0] = values[*source][0];
}

// As ReadNibbles, with groups of eight nibbles `stride` nibbles apart.
template <typename T>
void ReadGroupedNibbles(const NibbleTable<T>& values, const uint8_t* source,
                        int64_t first, int64_t stride, absl::Span<T> out) {
  while (!out.empty()) {
    const int64_t begin = first % kNibblesPerGroup;
    const size_t count =
        std::min(out.size(), static_cast<size_t>(kNibblesPerGroup - begin));
    ReadNibbles(values, source + first / kNibblesPerGroup * stride / 2, begin,
                out.subspan(0, count));
    out.remove_prefix(count);
    first += static_cast<int64_t>(count);
  }
}

// The nibbles of part of a row. Requires: HasNibbles(matrix.coding).
template <typename T>
void ReadNibblesOfRow(const StoredMatrix& matrix, const NibbleTable<T>& values,
                      int64_t row, int64_t col, absl::Span<T> out) {
  const uint8_t* source = matrix.data + row * matrix.row_stride / 2;
  if (matrix.coding == StoredCoding::kGptq4) {
    ReadGroupedNibbles(values, source, col, matrix.col_stride, out);
  } else {
    ReadNibbles(values, source, col, out);
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
    ReadNibblesOfRow(*this, NibbleValues(coding), row, col, out);
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

void StoredMatrix::ReadCodes(int64_t row, int64_t col, int64_t count,
                             uint8_t* out) const {
  MOE_DCHECK(coding != StoredCoding::kPlain);
  MOE_DCHECK(row >= 0 && row < rows && col >= 0 && col + count <= cols);
  if (!HasNibbles(coding)) {
    const uint8_t* source = data + row * row_stride + col * col_stride;
    if (col_stride == 1) {
      std::copy_n(source, count, out);
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[i] = source[i * col_stride];
    return;
  }
  MOE_DCHECK(col % kNibblesPerGroup == 0);
  const uint8_t* source = data + row * row_stride / 2;
  const int64_t bytes = (count + 1) / 2;
  if (coding != StoredCoding::kGptq4) {
    std::copy_n(source + col / 2, bytes, out);
    return;
  }
  constexpr int64_t kGroupBytes = kNibblesPerGroup / 2;
  source += col / kNibblesPerGroup * col_stride / 2;
  for (int64_t i = 0; i < bytes; i += kGroupBytes) {
    std::copy_n(source, std::min(kGroupBytes, bytes - i), out + i);
    source += col_stride / 2;
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

void StoredMatrix::ReadBlock(int64_t row, int64_t col, Matrix out) const {
  if (HasNibbles(coding) || col_stride <= row_stride) {
    for (int64_t r = 0; r < out.rows(); ++r) {
      Read(row + r, col,
           absl::MakeSpan(out.Row(r), static_cast<size_t>(out.cols())));
    }
    return;
  }
  const StoredMatrix stored = Transposed();
  std::array<std::array<float, kTile>, kTile> tile;  // [cols, rows]
  for (int64_t r = 0; r < out.rows(); r += kTile) {
    const int64_t height = std::min(kTile, out.rows() - r);
    for (int64_t c = 0; c < out.cols(); c += kTile) {
      const int64_t width = std::min(kTile, out.cols() - c);
      for (int64_t j = 0; j < width; ++j) {
        stored.Read(col + c + j, row + r,
                    absl::MakeSpan(tile[j]).subspan(0, height));
      }
      for (int64_t i = 0; i < height; ++i) {
        float* to = out.Row(r + i) + c;
        for (int64_t j = 0; j < width; ++j) to[j] = tile[j][i];
      }
    }
  }
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

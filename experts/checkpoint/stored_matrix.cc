#include "experts/checkpoint/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "experts/base/check.h"

namespace moe {
namespace {

constexpr int64_t kNibblesPerWord = 8;
constexpr int64_t kWordBytes = 4;
constexpr int kMiddle = 8;  // the zero point of symmetric codes

// Edge of the squares in which a transposed matrix is read: a row of BF16 is a
// cache line, and all of it fits the innermost cache.
constexpr int64_t kTile = 32;

// Columns of words that are read at a time: each in a cache line of its own,
// and all of them stay in the innermost cache for the rows that share the
// lines.
constexpr int64_t kWordTile = 128;

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
using NibbleTable = std::array<std::array<float, 2>, 256>;

template <typename Value>
NibbleTable MakeNibbleTable(Value value) {
  NibbleTable table;
  for (size_t byte = 0; byte < 256; ++byte) {
    table[byte] = {value(static_cast<uint8_t>(byte & 0xf)),
                   value(static_cast<uint8_t>(byte >> 4))};
  }
  return table;
}

const NibbleTable& NibbleValues(StoredCoding coding) {
  static const NibbleTable mxfp4 = MakeNibbleTable(F4E2M1ToFloat);
  static const NibbleTable int4 = MakeNibbleTable(
      [](uint8_t code) { return static_cast<float>(code - kMiddle); });
  return coding == StoredCoding::kMxfp4 ? mxfp4 : int4;
}

// out[i] = what nibble first + i stands for, i < count. Pointers, here and
// below: an index of a span is checked, which costs more than the rest.
void ReadNibbles(const NibbleTable& values, const uint8_t* source,
                 int64_t first, int64_t count, float* out) {
  source += first / 2;
  int64_t i = 0;
  if (first % 2 != 0 && count > 0) out[i++] = values[*source++][1];
  for (; i + 2 <= count; i += 2) {
    std::memcpy(out + i, values[*source++].data(), 2 * sizeof(float));
  }
  if (i < count) out[i] = values[*source][0];
}

// As ReadNibbles, with words of eight nibbles `stride` nibbles apart.
void ReadNibblesOfWords(const NibbleTable& values, const uint8_t* source,
                        int64_t first, int64_t stride, int64_t count,
                        float* out) {
  source += first / kNibblesPerWord * stride / 2;
  int64_t begin = first % kNibblesPerWord;
  for (int64_t i = 0; i < count;) {
    const int64_t part = std::min(count - i, kNibblesPerWord - begin);
    ReadNibbles(values, source, begin, part, out + i);
    i += part;
    source += stride / 2;
    begin = 0;
  }
}

// A row of the stored tensor that shares words with seven others.
struct RowOfWord {
  int64_t word;    // how many groups of eight rows lie before it
  int64_t nibble;  // of the word

  RowOfWord(const StoredMatrix& matrix, int64_t row) {
    const int64_t stored = matrix.first_row + row * matrix.row_step;
    const int64_t i = stored % kNibblesPerWord;
    word = stored / kNibblesPerWord;
    nibble = matrix.packing == NibblePacking::kRowWords ? i / 2 + i % 2 * 4 : i;
  }
};

// The zero points of an element's group, for eight rows.
const uint8_t* ZeroWord(const StoredMatrix& matrix, int64_t row, int64_t col) {
  return matrix.zeros +
         kWordBytes * (RowOfWord(matrix, row).word * matrix.zero_row_stride +
                       matrix.scale_cols.Number(col) * matrix.zero_col_stride);
}

// Part of a row, before scales. Requires: HasNibbles(matrix.coding), but not
// kRowWords.
void ReadNibblesOfRow(const StoredMatrix& matrix, int64_t row, int64_t col,
                      int64_t count, float* out) {
  const NibbleTable& values = NibbleValues(matrix.coding);
  const uint8_t* source = matrix.data + row * matrix.row_stride / 2;
  if (matrix.packing == NibblePacking::kColumnWords) {
    ReadNibblesOfWords(values, source, col, matrix.col_stride, count, out);
  } else {
    ReadNibbles(values, source, col, count, out);
  }
}

// Multiplies part of a row by its scales, after it has corrected the zero
// points from 8 to what they are. Requires: not kPlain.
void ApplyScales(const StoredMatrix& matrix, int64_t row, int64_t col,
                 int64_t count, float* out) {
  const ScaleAxis& axis = matrix.scale_cols;
  // One scale at a time, over the columns that share it.
  for (int64_t begin = 0; begin < count;) {
    const int64_t number = axis.Number(col + begin);
    int64_t end = count;
    if (axis.stride != 0) {
      // The first index with (offset + index * step) / block > number.
      const int64_t next =
          ((number + 1) * axis.block - axis.offset + axis.step - 1) / axis.step;
      end = std::min(count, next - col);
    }
    const float scale = matrix.Scale(row, col + begin);
    if (matrix.has_zero_points()) {
      // Integers, hence exact.
      const auto shift =
          static_cast<float>(matrix.ZeroPoint(row, col + begin) - kMiddle);
      for (int64_t i = begin; i < end; ++i) out[i] = (out[i] - shift) * scale;
    } else {
      for (int64_t i = begin; i < end; ++i) out[i] *= scale;
    }
    begin = end;
  }
}

// kRowWords: rows that share their words are read together. Each column of
// words is in a cache line of its own, often of the same few sets of the cache.
void ReadRowWords(const StoredMatrix& matrix, int64_t row, int64_t col,
                  Matrix out) {
  std::array<uint32_t, kWordTile> words;
  for (int64_t c = 0; c < out.cols(); c += kWordTile) {
    const int64_t width = std::min(kWordTile, out.cols() - c);
    int64_t held = -1;  // RowOfWord::word of `words`
    for (int64_t r = 0; r < out.rows(); ++r) {
      const RowOfWord at(matrix, row + r);
      if (at.word != held) {
        held = at.word;
        const uint8_t* first =
            matrix.data +
            (at.word * matrix.row_stride + (col + c) * matrix.col_stride) / 2;
        for (int64_t i = 0; i < width; ++i) {
          words[i] = LoadUnaligned<uint32_t>(first + i * matrix.col_stride / 2);
        }
      }
      float* to = out.Row(r) + c;
      for (int64_t i = 0; i < width; ++i) {
        to[i] = static_cast<float>(
            static_cast<int>(words[i] >> (4 * at.nibble) & 0xfU) - kMiddle);
      }
      ApplyScales(matrix, row + r, col + c, width, to);
    }
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
  if (packing == NibblePacking::kRowWords) {
    ReadRowWords(*this, row, col, Matrix(out.data(), 1, count));
    return;
  }
  if (!HasNibbles(coding)) {
    const int64_t first = row * row_stride + col * col_stride;
    WidenElements(dtype, data + first * DTypeBytes(dtype), col_stride, out);
  } else {
    ReadNibblesOfRow(*this, row, col, count, out.data());
  }
  if (coding != StoredCoding::kPlain) {
    ApplyScales(*this, row, col, count, out.data());
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
  MOE_DCHECK(col % kNibblesPerWord == 0);
  const int64_t bytes = (count + 1) / 2;
  if (packing == NibblePacking::kRowWords) {
    const RowOfWord at(*this, row);
    const uint8_t* first =
        data + (at.word * row_stride + col * col_stride + at.nibble) / 2;
    const auto code = [&](int64_t i) {
      return first[i * col_stride / 2] >> (at.nibble % 2 * 4) & 0xf;
    };
    for (int64_t i = 0; i < count / 2; ++i) {
      out[i] = static_cast<uint8_t>(code(2 * i) | code(2 * i + 1) << 4);
    }
    if (count % 2 != 0) out[count / 2] = static_cast<uint8_t>(code(count - 1));
    return;
  }
  const uint8_t* source = data + row * row_stride / 2;
  if (packing == NibblePacking::kRows) {
    std::copy_n(source + col / 2, bytes, out);
    return;
  }
  source += col / kNibblesPerWord * col_stride / 2;
  for (int64_t i = 0; i < bytes; i += kWordBytes) {
    std::copy_n(source, std::min(kWordBytes, bytes - i), out + i);
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

int StoredMatrix::ZeroPoint(int64_t row, int64_t col) const {
  MOE_DCHECK(coding == StoredCoding::kInt4);
  if (!has_zero_points()) return kMiddle;
  const uint32_t word =
      LoadUnaligned<uint32_t>(ZeroWord(*this, row, col)) + zero_offset;
  return static_cast<int>(word >> (4 * RowOfWord(*this, row).nibble) & 0xfU);
}

void StoredMatrix::ReadBlock(int64_t row, int64_t col, Matrix out) const {
  if (packing == NibblePacking::kRowWords) {
    ReadRowWords(*this, row, col, out);
    return;
  }
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
  part.scale_rows.offset += first * scale_rows.step;
  part.scale_rows.step *= step;
  part.first_row += first * row_step;
  part.row_step *= step;
  if (packing == NibblePacking::kRowWords) return part;
  part.row_stride *= step;
  // A row of nibbles fills whole bytes, and those of words are eight apart.
  part.data += HasNibbles(coding) ? first * row_stride / 2
                                  : first * row_stride * DTypeBytes(dtype);
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
  const int64_t num_scales =
      ScalesAlong(scale_rows, rows) * ScalesAlong(scale_cols, cols);
  return num_scales * DTypeBytes(scale_dtype) +
         (has_zero_points() ? (num_scales + 1) / 2 : 0) +
         (HasNibbles(coding) ? elements / 2 : elements * DTypeBytes(dtype));
}

absl::Span<const uint8_t> StoredMatrix::DataExtent() const {
  if (rows == 0 || cols == 0) return {};
  if (packing == NibblePacking::kRowWords) {
    const auto byte = [this](int64_t row, int64_t col) {
      return (RowOfWord(*this, row).word * row_stride + col * col_stride) / 2;
    };
    const int64_t begin = byte(0, 0);
    const int64_t end = byte(rows - 1, cols - 1) + kWordBytes;
    return absl::MakeConstSpan(data + begin, static_cast<size_t>(end - begin));
  }
  if (!HasNibbles(coding)) {
    const int64_t last = (rows - 1) * row_stride + (cols - 1) * col_stride;
    return absl::MakeConstSpan(
        data, static_cast<size_t>((last + 1) * DTypeBytes(dtype)));
  }
  const int64_t last_column = packing == NibblePacking::kColumnWords
                                  ? (cols - 1) / kNibblesPerWord * col_stride +
                                        (cols - 1) % kNibblesPerWord
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

absl::Span<const uint8_t> StoredMatrix::ZeroExtent() const {
  if (rows == 0 || cols == 0 || !has_zero_points()) return {};
  const uint8_t* first = ZeroWord(*this, 0, 0);
  const uint8_t* end = ZeroWord(*this, rows - 1, cols - 1) + kWordBytes;
  return absl::MakeConstSpan(first, static_cast<size_t>(end - first));
}

}  // namespace moe

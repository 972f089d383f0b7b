#include "experts/pack_stored.h"

#include <limits>

#include "experts/base/rounding.h"

namespace moe {
namespace {

// The columns that share a scale, if they are what a packed group can be;
// else 0. One scale for the whole row is a group of all columns.
int64_t GroupOf(const StoredMatrix& matrix) {
  constexpr int64_t kMultiple = 32;
  const ScaleAxis& axis = matrix.scale_cols;
  if (axis.stride == 0 || axis.block >= matrix.cols) {
    return axis.offset + axis.step * (matrix.cols - 1) < axis.block ||
                   axis.stride == 0
               ? RoundUp(matrix.cols, kMultiple)
               : 0;
  }
  const bool whole =
      axis.offset == 0 && axis.step == 1 && axis.block % kMultiple == 0;
  return whole ? axis.block : 0;
}

WeightFormat CodedFormat(const StoredMatrix& matrix) {
  switch (matrix.coding) {
    case StoredCoding::kScaled:
      return WeightFormat::kFp8;
    case StoredCoding::kMxfp4:
      return WeightFormat::kMxfp4;
    case StoredCoding::kInt4:
      return WeightFormat::kInt4;
    case StoredCoding::kPlain:
      break;
  }
  return WeightFormat::kAuto;
}

WeightFormat PlainFormat(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return WeightFormat::kBF16;
    case DType::kF16:
      return WeightFormat::kF16;
    default:
      return WeightFormat::kF32;
  }
}

// Whether the layout holds the stored codes, scales and zero points as they
// are.
bool IsOwnLayout(const PackedLayout& layout, const StoredMatrix& matrix) {
  return layout.has_scales() && layout.format == CodedFormat(matrix) &&
         layout.group == GroupOf(matrix) &&
         layout.scale_dtype == matrix.scale_dtype &&
         (layout.zero_points || !matrix.has_zero_points());
}

}  // namespace

PackedLayout LayoutFor(WeightFormat format, const StoredMatrix& matrix) {
  if (format != WeightFormat::kAuto && format != CodedFormat(matrix)) {
    return PackedLayout::For(format, matrix.rows, matrix.cols);
  }
  if (matrix.coding == StoredCoding::kPlain) {
    return PackedLayout::For(PlainFormat(matrix.dtype), matrix.rows,
                             matrix.cols);
  }
  const int64_t group = GroupOf(matrix);
  if (group == 0) {
    return PackedLayout::For(
        format == WeightFormat::kAuto ? WeightFormat::kF32 : format,
        matrix.rows, matrix.cols);
  }
  PackedLayout layout =
      PackedLayout::For(CodedFormat(matrix), matrix.rows, matrix.cols);
  layout.group = group;
  layout.scale_dtype = matrix.scale_dtype;
  layout.zero_points = matrix.has_zero_points();
  return layout;
}

void PackStoredPanel(const PackedLayout& layout, const StoredMatrix& matrix,
                     int64_t panel, uint8_t* dst) {
  if (IsOwnLayout(layout, matrix)) {
    PackCodedPanel(
        layout,
        [&](int64_t row, int64_t col, int64_t count, uint8_t* out) {
          matrix.ReadCodes(row, col, count, out);
        },
        [&](int64_t row, int64_t col) { return matrix.Scale(row, col); },
        [&](int64_t row, int64_t col) { return matrix.ZeroPoint(row, col); },
        panel, dst);
    return;
  }
  PackPanel(
      layout,
      [&](int64_t row, int64_t col, absl::Span<float> out) {
        matrix.Read(row, col, out);
      },
      panel, dst);
}

}  // namespace moe

#include "server/tensor_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/check.h"
#include "experts/base/dtype.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little,
              "wire tensors are little-endian");

// Dimensions as "[7, 4095]"; long lists are cut.
std::string ShapeText(const v1::Tensor& tensor) {
  constexpr int kShown = 8;
  const auto& shape = tensor.shape();
  if (shape.size() <= kShown) {
    return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
  }
  return absl::StrCat(
      "[", absl::StrJoin(shape.begin(), shape.begin() + kShown, ", "), ", ... ",
      shape.size(), " dimensions]");
}

std::string DTypeText(v1::DType dtype) {
  // An open enum: any number may come in.
  if (!v1::DType_IsValid(dtype)) {
    return absl::StrCat(static_cast<int>(dtype));
  }
  return v1::DType_Name(dtype);
}

absl::Status CheckShape(const v1::Tensor& tensor, absl::string_view field,
                        absl::string_view want, bool matches) {
  if (matches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".shape: want ", want, ", got ", ShapeText(tensor)));
}

// The dtype and shape have been checked, so that the product can't overflow.
absl::StatusOr<WireMatrix> CheckBytes(const v1::Tensor& tensor,
                                      absl::string_view field) {
  const WireMatrix matrix{.dtype = tensor.dtype(),
                          .rows = tensor.shape(0),
                          .cols = tensor.shape(1),
                          .data = tensor.data().data()};
  const int64_t want = matrix.rows * matrix.cols * ElementBytes(matrix.dtype);
  const auto got = static_cast<int64_t>(tensor.data().size());
  if (want != got) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".data: want ", want, " bytes for ", ShapeText(tensor), " of ",
        DTypeText(matrix.dtype), ", got ", got));
  }
  return matrix;
}

absl::StatusOr<WireMatrix> CheckExact(const v1::Tensor& tensor,
                                      absl::string_view field, v1::DType dtype,
                                      int64_t rows, int64_t cols) {
  if (tensor.dtype() != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".dtype: want ",
                                                   DTypeText(dtype), ", got ",
                                                   DTypeText(tensor.dtype())));
  }
  MOE_RETURN_IF_ERROR(
      CheckShape(tensor, field, absl::StrCat("[", rows, ", ", cols, "]"),
                 tensor.shape_size() == 2 && tensor.shape(0) == rows &&
                     tensor.shape(1) == cols));
  return CheckBytes(tensor, field);
}

// Ids of one row: in range, and no expert twice.
absl::Status CheckIdsRow(absl::Span<const int32_t> ids, int64_t row,
                         int64_t num_experts) {
  for (size_t j = 0; j < ids.size(); ++j) {
    const int32_t id = ids[j];
    if (id < -1 || id >= num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("expert_ids.data: want -1 to ", num_experts - 1,
                       ", got ", id, " at [", row, ", ", j, "]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ElementBytes(v1::DType dtype) {
  return dtype == v1::BF16 || dtype == v1::F16 ? 2 : 4;
}

WireMatrix WireMatrix::Rows(int64_t first, int64_t count) const {
  MOE_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
  WireMatrix part = *this;
  part.rows = count;
  part.data += first * cols * ElementBytes(dtype);
  return part;
}

absl::StatusOr<WireMatrix> CheckHiddenStates(const v1::Tensor& tensor,
                                             absl::string_view field,
                                             int64_t d_model,
                                             int64_t max_tokens) {
  switch (tensor.dtype()) {
    case v1::F32:
    case v1::BF16:
    case v1::F16:
      break;
    case v1::I32:
      return absl::UnimplementedError(
          absl::StrCat(field, ".dtype: want F32, BF16 or F16, got I32"));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".dtype: want F32, BF16 or F16, got ",
                       DTypeText(tensor.dtype())));
  }
  MOE_RETURN_IF_ERROR(
      CheckShape(tensor, field, absl::StrCat("[tokens, ", d_model, "]"),
                 tensor.shape_size() == 2 && tensor.shape(0) >= 0 &&
                     tensor.shape(1) == d_model));
  MOE_RETURN_IF_ERROR(
      CheckShape(tensor, field, absl::StrCat("at most ", max_tokens, " tokens"),
                 tensor.shape(0) <= max_tokens));
  return CheckBytes(tensor, field);
}

absl::StatusOr<WireRouting> CheckRouting(const v1::Tensor& expert_ids,
                                         const v1::Tensor& routing_weights,
                                         int64_t tokens, int64_t num_experts) {
  const int64_t k = expert_ids.shape_size() == 2 ? expert_ids.shape(1) : 0;
  MOE_RETURN_IF_ERROR(CheckShape(
      expert_ids, "expert_ids",
      absl::StrCat("[", tokens, ", 1 to ", num_experts, "]"),
      expert_ids.shape_size() == 2 && expert_ids.shape(0) == tokens && k >= 1 &&
          k <= num_experts));
  WireRouting routing;
  MOE_ASSIGN_OR_RETURN(
      routing.ids, CheckExact(expert_ids, "expert_ids", v1::I32, tokens, k));
  MOE_ASSIGN_OR_RETURN(
      routing.weights,
      CheckExact(routing_weights, "routing_weights", v1::F32, tokens, k));
  std::vector<int32_t> row(static_cast<size_t>(k));
  for (int64_t t = 0; t < tokens; ++t) {
    std::memcpy(row.data(), routing.ids.data + t * k * 4,
                static_cast<size_t>(k) * 4);
    MOE_RETURN_IF_ERROR(CheckIdsRow(row, t, num_experts));
    std::sort(row.begin(), row.end());
    for (size_t j = 1; j < row.size(); ++j) {
      if (row[j] >= 0 && row[j] == row[j - 1]) {
        return absl::InvalidArgumentError(
            absl::StrCat("expert_ids.data: want distinct experts, got ", row[j],
                         " twice in row ", t));
      }
    }
  }
  return routing;
}

void Decode(const WireMatrix& from, Matrix out) {
  MOE_DCHECK(out.rows() == from.rows && out.cols() == from.cols);
  const int64_t row_bytes = from.cols * ElementBytes(from.dtype);
  for (int64_t r = 0; r < from.rows; ++r) {
    const char* row = from.data + r * row_bytes;
    float* to = out.Row(r);
    switch (from.dtype) {
      case v1::BF16:
        for (int64_t c = 0; c < from.cols; ++c) {
          to[c] = BF16ToFloat(LoadUnaligned<uint16_t>(row + 2 * c));
        }
        break;
      case v1::F16:
        for (int64_t c = 0; c < from.cols; ++c) {
          to[c] = F16ToFloat(LoadUnaligned<uint16_t>(row + 2 * c));
        }
        break;
      default:
        std::memcpy(to, row, static_cast<size_t>(row_bytes));
        break;
    }
  }
}

void DecodeIds(const WireMatrix& from, MatrixView<int32_t> out) {
  MOE_DCHECK(out.rows() == from.rows && out.cols() == from.cols);
  for (int64_t r = 0; r < from.rows; ++r) {
    std::memcpy(out.Row(r), from.data + r * from.cols * 4,
                static_cast<size_t>(from.cols) * 4);
  }
}

void Reserve(v1::DType dtype, int64_t rows, int64_t cols, v1::Tensor& tensor) {
  tensor.set_dtype(dtype);
  tensor.clear_shape();
  tensor.add_shape(rows);
  tensor.add_shape(cols);
  tensor.mutable_data()->resize(
      static_cast<size_t>(rows * cols * ElementBytes(dtype)));
}

namespace {

char* RowOf(v1::Tensor& tensor, int64_t row) {
  return tensor.mutable_data()->data() +
         row * tensor.shape(1) * ElementBytes(tensor.dtype());
}

}  // namespace

void EncodeRows(ConstMatrix from, int64_t first, v1::Tensor& tensor) {
  char* to = RowOf(tensor, first);
  const auto narrow = [&](uint16_t (*round)(float)) {
    for (int64_t r = 0; r < from.rows(); ++r) {
      for (int64_t c = 0; c < from.cols(); ++c, to += 2) {
        const uint16_t bits = round(from.Row(r)[c]);
        std::memcpy(to, &bits, 2);
      }
    }
  };
  switch (tensor.dtype()) {
    case v1::BF16:
      narrow(FloatToBF16);
      break;
    case v1::F16:
      narrow(FloatToF16);
      break;
    default:
      for (int64_t r = 0; r < from.rows(); ++r) {
        const auto bytes = static_cast<size_t>(from.cols()) * 4;
        std::memcpy(to, from.Row(r), bytes);
        to += bytes;
      }
      break;
  }
}

void EncodeRows(MatrixView<const int32_t> from, int64_t first,
                v1::Tensor& tensor) {
  char* to = RowOf(tensor, first);
  for (int64_t r = 0; r < from.rows(); ++r) {
    const auto bytes = static_cast<size_t>(from.cols()) * 4;
    std::memcpy(to, from.Row(r), bytes);
    to += bytes;
  }
}

void Encode(ConstMatrix from, v1::DType dtype, v1::Tensor& tensor) {
  Reserve(dtype, from.rows(), from.cols(), tensor);
  EncodeRows(from, 0, tensor);
}

void EncodeIds(MatrixView<const int32_t> from, v1::Tensor& tensor) {
  Reserve(v1::I32, from.rows(), from.cols(), tensor);
  EncodeRows(from, 0, tensor);
}

}  // namespace moe

#include "server/wire/tensor_codec.h"

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

absl::Status CheckShape(const WireTensor& tensor, absl::string_view field,
                        absl::string_view want, bool matches) {
  if (matches) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ".shape: want ", want, ", got ", ShapeText(tensor.head)));
}

// The dtype and shape have been checked, so that the product can't overflow.
absl::StatusOr<WireMatrix> CheckBytes(const WireTensor& tensor,
                                      absl::string_view field) {
  const WireMatrix matrix{.dtype = tensor.head.dtype(),
                          .rows = tensor.head.shape(0),
                          .cols = tensor.head.shape(1),
                          .data = tensor.data};
  const int64_t want = matrix.bytes();
  const auto got = static_cast<int64_t>(tensor.size);
  if (want != got) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".data: want ", want, " bytes for ", ShapeText(tensor.head),
        " of ", DTypeText(matrix.dtype), ", got ", got));
  }
  return matrix;
}

absl::StatusOr<WireMatrix> CheckExact(const WireTensor& wire,
                                      absl::string_view field, v1::DType dtype,
                                      int64_t rows, int64_t cols) {
  const v1::Tensor& tensor = wire.head;
  if (tensor.dtype() != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".dtype: want ",
                                                   DTypeText(dtype), ", got ",
                                                   DTypeText(tensor.dtype())));
  }
  MOE_RETURN_IF_ERROR(
      CheckShape(wire, field, absl::StrCat("[", rows, ", ", cols, "]"),
                 tensor.shape_size() == 2 && tensor.shape(0) == rows &&
                     tensor.shape(1) == cols));
  return CheckBytes(wire, field);
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

bool IsFloat(v1::DType dtype) {
  return dtype == v1::F32 || dtype == v1::BF16 || dtype == v1::F16;
}

absl::Status RefuseNonFloat(absl::string_view field, v1::DType dtype) {
  return RefuseDType(
      field, "F32, BF16 or F16", DTypeText(dtype),
      v1::DType_IsValid(dtype) && dtype != v1::DTYPE_UNSPECIFIED);
}

}  // namespace

absl::Status RefuseDType(absl::string_view field, absl::string_view want,
                         absl::string_view got, bool known) {
  const std::string message =
      absl::StrCat(field, ": want ", want, ", got ", got);
  return known ? absl::UnimplementedError(message)
               : absl::InvalidArgumentError(message);
}

absl::StatusOr<v1::DType> OutputDType(v1::DType asked, v1::DType otherwise) {
  if (asked == v1::DTYPE_UNSPECIFIED) return otherwise;
  if (IsFloat(asked)) return asked;
  return RefuseNonFloat("output_dtype", asked);
}

int64_t ElementBytes(v1::DType dtype) {
  return dtype == v1::BF16 || dtype == v1::F16 ? 2 : 4;
}

WireMatrix WireMatrix::Rows(int64_t first, int64_t count) const {
  MOE_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
  WireMatrix part = *this;
  part.rows = count;
  part.data =
      data.From(static_cast<size_t>(first * cols * ElementBytes(dtype)));
  return part;
}

absl::StatusOr<WireMatrix> CheckHiddenStates(const WireTensor& wire,
                                             absl::string_view field,
                                             int64_t d_model,
                                             int64_t max_tokens) {
  const v1::Tensor& tensor = wire.head;
  if (!IsFloat(tensor.dtype())) {
    return RefuseNonFloat(absl::StrCat(field, ".dtype"), tensor.dtype());
  }
  MOE_RETURN_IF_ERROR(
      CheckShape(wire, field, absl::StrCat("[tokens, ", d_model, "]"),
                 tensor.shape_size() == 2 && tensor.shape(0) >= 0 &&
                     tensor.shape(1) == d_model));
  MOE_RETURN_IF_ERROR(
      CheckShape(wire, field, absl::StrCat("at most ", max_tokens, " tokens"),
                 tensor.shape(0) <= max_tokens));
  return CheckBytes(wire, field);
}

absl::StatusOr<WireRouting> CheckRouting(const WireTensor& expert_ids,
                                         const WireTensor& routing_weights,
                                         int64_t tokens, int64_t num_experts) {
  const v1::Tensor& ids = expert_ids.head;
  const int64_t k = ids.shape_size() == 2 ? ids.shape(1) : 0;
  MOE_RETURN_IF_ERROR(
      CheckShape(expert_ids, "expert_ids",
                 absl::StrCat("[", tokens, ", 1 to ", num_experts, "]"),
                 ids.shape_size() == 2 && ids.shape(0) == tokens && k >= 1 &&
                     k <= num_experts));
  WireRouting routing;
  MOE_ASSIGN_OR_RETURN(
      routing.ids, CheckExact(expert_ids, "expert_ids", v1::I32, tokens, k));
  MOE_ASSIGN_OR_RETURN(
      routing.weights,
      CheckExact(routing_weights, "routing_weights", v1::F32, tokens, k));
  std::vector<int32_t> row(static_cast<size_t>(k));
  for (int64_t t = 0; t < tokens; ++t) {
    routing.ids.Rows(t, 1).data.CopyTo(row.data(), row.size() * 4);
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

namespace {

// to[c] = widen(from[c]). `from` may be the second half of `to`: element c is
// read before anything is written over it.
template <typename Widen>
void WidenRow(const char* from, Widen widen, int64_t cols, float* to) {
  for (int64_t c = 0; c < cols; ++c) {
    to[c] = widen(LoadUnaligned<uint16_t>(from + 2 * c));
  }
}

template <typename Round>
void NarrowRow(const float* from, Round round, int64_t cols, char* to) {
  for (int64_t c = 0; c < cols; ++c) {
    const uint16_t bits = round(from[c]);
    std::memcpy(to + 2 * c, &bits, 2);
  }
}

}  // namespace

void Decode(const WireMatrix& from, Matrix out) {
  MOE_DCHECK(out.rows() == from.rows && out.cols() == from.cols);
  const auto row_bytes =
      static_cast<size_t>(from.cols * ElementBytes(from.dtype));
  for (int64_t r = 0; r < from.rows; ++r) {
    const WireBytes row = from.data.From(static_cast<size_t>(r) * row_bytes);
    float* to = out.Row(r);
    if (ElementBytes(from.dtype) == 4) {
      row.CopyTo(to, row_bytes);
      continue;
    }
    const char* bits = row.Together(row_bytes);
    if (bits == nullptr && row_bytes > 0) {
      char* second_half = reinterpret_cast<char*>(to) + row_bytes;
      row.CopyTo(second_half, row_bytes);
      bits = second_half;
    }
    if (from.dtype == v1::BF16) {
      WidenRow(
          bits, [](uint16_t b) { return BF16ToFloat(b); }, from.cols, to);
    } else {
      WidenRow(
          bits, [](uint16_t b) { return F16ToFloat(b); }, from.cols, to);
    }
  }
}

void DecodeIds(const WireMatrix& from, MatrixView<int32_t> out) {
  MOE_DCHECK(out.rows() == from.rows && out.cols() == from.cols);
  for (int64_t r = 0; r < from.rows; ++r) {
    from.Rows(r, 1).data.CopyTo(out.Row(r), static_cast<size_t>(from.cols) * 4);
  }
}

void EncodeRows(ConstMatrix from, v1::DType dtype, char* to) {
  const int64_t row_bytes = from.cols() * ElementBytes(dtype);
  for (int64_t r = 0; r < from.rows(); ++r, to += row_bytes) {
    if (dtype == v1::BF16) {
      NarrowRow(
          from.Row(r), [](float x) { return FloatToBF16(x); }, from.cols(), to);
    } else if (dtype == v1::F16) {
      NarrowRow(
          from.Row(r), [](float x) { return FloatToF16(x); }, from.cols(), to);
    } else if (row_bytes > 0) {
      std::memcpy(to, from.Row(r), static_cast<size_t>(row_bytes));
    }
  }
}

void EncodeRows(MatrixView<const int32_t> from, char* to) {
  const auto row_bytes = static_cast<size_t>(from.cols()) * 4;
  for (int64_t r = 0; r < from.rows(); ++r, to += row_bytes) {
    if (row_bytes > 0) std::memcpy(to, from.Row(r), row_bytes);
  }
}

namespace {

// Gives a tensor its type and shape, and room for its data.
char* Reserve(v1::DType dtype, int64_t rows, int64_t cols, v1::Tensor& tensor) {
  tensor.set_dtype(dtype);
  tensor.clear_shape();
  tensor.add_shape(rows);
  tensor.add_shape(cols);
  std::string* data = tensor.mutable_data();
  data->resize(static_cast<size_t>(rows * cols * ElementBytes(dtype)));
  return data->data();
}

}  // namespace

void Encode(ConstMatrix from, v1::DType dtype, v1::Tensor& tensor) {
  EncodeRows(from, dtype, Reserve(dtype, from.rows(), from.cols(), tensor));
}

void EncodeIds(MatrixView<const int32_t> from, v1::Tensor& tensor) {
  EncodeRows(from, Reserve(v1::I32, from.rows(), from.cols(), tensor));
}

}  // namespace moe

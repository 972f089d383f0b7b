#include "experts/checkpoint/open_matrix.h"

#include "experts/base/status_macros.h"

namespace moe {
namespace {

constexpr DType kPlainDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                                  DType::kF64};

}  // namespace

absl::StatusOr<StoredMatrix> OpenMatrix(const Checkpoint& checkpoint,
                                        absl::string_view name, int64_t rows,
                                        int64_t cols, StoredOrder order) {
  const bool turned = order == StoredOrder::kInOut;
  StoredMatrix matrix;
  matrix.rows = turned ? cols : rows;
  matrix.cols = turned ? rows : cols;
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* tensor,
      checkpoint.Require(name, kPlainDTypes, {matrix.rows, matrix.cols}));
  matrix.dtype = *tensor->dtype;
  matrix.data = tensor->bytes.data();
  matrix.row_stride = matrix.cols;
  return turned ? matrix.Transposed() : matrix;
}

absl::StatusOr<std::vector<float>> ReadVector(const Checkpoint& checkpoint,
                                              absl::string_view name,
                                              int64_t size) {
  const TensorInfo* found = checkpoint.Find(name);
  std::vector<int64_t> shape = {size};
  if (found != nullptr && found->shape.size() == 2) {
    shape.insert(found->shape[0] == 1 ? shape.begin() : shape.end(), 1);
  }
  MOE_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                       checkpoint.Require(name, kPlainDTypes, shape));
  StoredMatrix row;
  row.rows = 1;
  row.cols = size;
  row.dtype = *tensor->dtype;
  row.data = tensor->bytes.data();
  std::vector<float> values(static_cast<size_t>(size));
  row.Read(0, 0, absl::MakeSpan(values));
  return values;
}

}  // namespace moe

// A view of a row-major matrix: does not own, cheap to copy, pass by value.

#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/base/check.h"

namespace moe {

// Rows may be further apart than they are long (`stride` >= `cols`, in
// elements).
template <typename T>
class MatrixView {
 public:
  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols)
      : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {
    MOE_DCHECK(rows >= 0 && cols >= 0 && stride >= cols);
  }
  // A view of mutable elements converts to a view of const ones.
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, as for spans
  MatrixView(MatrixView<U> other)
      : MatrixView(other.data(), other.rows(), other.cols(), other.stride()) {}

  T* data() const { return data_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t stride() const { return stride_; }

  // Pointer to the first element of row `row`.
  T* Row(int64_t row) const {
    MOE_DCHECK(row >= 0 && row < rows_);
    return data_ + row * stride_;
  }
  // Rows [first, first + count).
  MatrixView Rows(int64_t first, int64_t count) const {
    MOE_DCHECK(first >= 0 && count >= 0 && first + count <= rows_);
    return MatrixView(data_ + first * stride_, count, cols_, stride_);
  }

 private:
  T* data_ = nullptr;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t stride_ = 0;
};

using ConstMatrix = MatrixView<const float>;
using Matrix = MatrixView<float>;

}  // namespace moe

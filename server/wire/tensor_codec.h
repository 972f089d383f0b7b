// Between wire tensors and matrices: every check on tensor data from outside
// is here.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "experts/base/matrix_view.h"
#include "moe/v1/moe.pb.h"
#include "server/wire/wire_bytes.h"

namespace moe {

// Bytes per element of F32, BF16, F16, I32.
int64_t ElementBytes(v1::DType dtype);

// A wire matrix whose shape, element type and byte count have been checked.
// The bytes belong to the message that it was made from.
struct WireMatrix {
  v1::DType dtype = v1::F32;
  int64_t rows = 0;
  int64_t cols = 0;
  WireBytes data;  // any alignment

  int64_t bytes() const { return rows * cols * ElementBytes(dtype); }
  // Rows [first, first + count).
  WireMatrix Rows(int64_t first, int64_t count) const;
};

// A tensor of a message whose data may lie elsewhere.
struct WireTensor {
  // The tensor with its own data.
  // NOLINTNEXTLINE(google-explicit-constructor): the usual case
  WireTensor(const v1::Tensor& tensor)
      : WireTensor(tensor, tensor.data().data(), tensor.data().size()) {}
  WireTensor(const v1::Tensor& without_data, WireBytes bytes, size_t num_bytes)
      : head(without_data), data(bytes), size(num_bytes) {}

  const v1::Tensor& head;  // element type and shape
  WireBytes data;
  size_t size;
};

// The refusal of an element type where `want` lists those that are taken.
// known: whether `got` is a type of the protocol, hence UNIMPLEMENTED; any
// other is INVALID_ARGUMENT.
absl::Status RefuseDType(absl::string_view field, absl::string_view want,
                         absl::string_view got, bool known);

// The element type of an output: the one that is asked for, or `otherwise` if
// that is unspecified.
// Errors: as RefuseDType for all but F32, BF16 and F16, naming output_dtype.
absl::StatusOr<v1::DType> OutputDType(v1::DType asked, v1::DType otherwise);

// Hidden states [tokens, d_model] with 0 <= tokens <= max_tokens.
// Errors: INVALID_ARGUMENT naming `field`, wanted, got; as RefuseDType for an
// element type that is not one of F32, BF16, F16.
absl::StatusOr<WireMatrix> CheckHiddenStates(const WireTensor& tensor,
                                             absl::string_view field,
                                             int64_t d_model,
                                             int64_t max_tokens);

// Expert ids [tokens, k] and routing weights [tokens, k] given by a caller,
// 1 <= k <= num_experts: ids are -1 or in [0, num_experts) and distinct within
// a row.
// Errors: INVALID_ARGUMENT naming the field.
struct WireRouting {
  WireMatrix ids;      // I32
  WireMatrix weights;  // F32
};
absl::StatusOr<WireRouting> CheckRouting(const WireTensor& expert_ids,
                                         const WireTensor& routing_weights,
                                         int64_t tokens, int64_t num_experts);

// Widens all rows to float. out: [rows, cols].
void Decode(const WireMatrix& from, Matrix out);
// Copies expert ids. out: [rows, cols].
void DecodeIds(const WireMatrix& from, MatrixView<int32_t> out);

// Writes `from` row after row, rounded to `dtype` (to nearest, ties to even).
// Requires: dtype is F32, BF16 or F16; room for the bytes.
void EncodeRows(ConstMatrix from, v1::DType dtype, char* to);
void EncodeRows(MatrixView<const int32_t> from, char* to);

// Fills `tensor` with all of `from`.
void Encode(ConstMatrix from, v1::DType dtype, v1::Tensor& tensor);
void EncodeIds(MatrixView<const int32_t> from, v1::Tensor& tensor);

}  // namespace moe

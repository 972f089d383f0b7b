#include "experts/checkpoint/open_matrix.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/check.h"
#include "experts/base/rounding.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

constexpr DType kFloatDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                                  DType::kF64};
constexpr DType kScaleDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                                  DType::kF8E8M0};
constexpr int64_t kMxfp4Group = 32;  // elements per scale
constexpr int64_t kNibblesPerI32 = 8;
constexpr uint32_t kOneInEachNibble = 0x11111111U;

absl::Status Unsupported(const Checkpoint& checkpoint, const TensorInfo& tensor,
                         absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(checkpoint.Where(tensor), ": ", what, " is not supported"));
}

// What is asked for: `count` matrices [rows, cols] of the logical order in the
// tensor `name`; without `count`, one matrix without the extra dimension.
struct Request {
  const Checkpoint& checkpoint;
  absl::string_view name;
  std::optional<int64_t> count;
  int64_t rows;
  int64_t cols;
  StoredOrder order;

  // "X" of "X.weight".
  absl::string_view stem() const { return absl::StripSuffix(name, ".weight"); }

  // `shape` with the dimension [count] before it, if there is one.
  std::vector<int64_t> Stacked(std::vector<int64_t> shape) const {
    if (count) shape.insert(shape.begin(), *count);
    return shape;
  }

  // The first of the tensors that are there, or null.
  const TensorInfo* FindAny(
      std::initializer_list<std::string> candidates) const {
    for (const std::string& candidate : candidates) {
      const TensorInfo* tensor = checkpoint.Find(candidate);
      if (tensor != nullptr) return tensor;
    }
    return nullptr;
  }
  const TensorInfo* FindScale() const {
    return FindAny({absl::StrCat(name, "_scale_inv"),
                    absl::StrCat(name, "_scale"),
                    absl::StrCat(stem(), ".scale")});
  }

  absl::Status Unsupported(const TensorInfo& tensor,
                           absl::string_view what) const {
    return moe::Unsupported(checkpoint, tensor, what);
  }
};

// A stack of matrices [rows, cols] that lie one after the other.
StoredStack Contiguous(const Request& request, int64_t rows, int64_t cols,
                       const TensorInfo& tensor) {
  StoredStack stack;
  stack.count = request.count.value_or(1);
  stack.first.rows = rows;
  stack.first.cols = cols;
  stack.first.data = tensor.bytes.data();
  stack.first.row_stride = cols;
  stack.first.dtype = *tensor.dtype;
  const auto bytes = static_cast<int64_t>(tensor.bytes.size());
  stack.data_step = bytes / stack.count;
  return stack;
}

// The two axes of a scale tensor of shape `shape` that serves a stored
// [rows, cols] matrix; nothing if it fits in no way.
struct ScaleAxes {
  ScaleAxis rows;
  ScaleAxis cols;
};
std::optional<ScaleAxes> ScaleAxesOf(absl::Span<const int64_t> shape,
                                     int64_t rows, int64_t cols,
                                     const Quantization& quantization) {
  const bool single = std::all_of(shape.begin(), shape.end(),
                                  [](int64_t extent) { return extent == 1; });
  if (single) return ScaleAxes{};
  // [rows] is [rows, 1].
  if (shape.empty() || shape.size() > 2) return std::nullopt;
  const int64_t height = shape[0];
  const int64_t width = shape.size() == 2 ? shape[1] : 1;

  const auto axis = [](int64_t block, int64_t stride) {
    return ScaleAxis{.block = block, .stride = stride};
  };
  const auto& block = quantization;
  if (height == CeilDiv(rows, block.block_rows) &&
      width == CeilDiv(cols, block.block_cols)) {
    return ScaleAxes{axis(block.block_rows, width), axis(block.block_cols, 1)};
  }
  if (height == rows && width >= 1 && cols % width == 0) {
    return ScaleAxes{axis(1, width), axis(cols / width, 1)};
  }
  if (height == 1 && width == cols) return ScaleAxes{{}, axis(1, 1)};
  return std::nullopt;
}

// Adds the scales in `tensor`, decided by its shape.
absl::Status AddScales(const Request& request, const TensorInfo& tensor,
                       StoredStack& stack) {
  StoredMatrix& matrix = stack.first;
  MOE_RETURN_IF_ERROR(
      request.checkpoint.Require(tensor.name, kScaleDTypes, tensor.shape)
          .status());
  absl::Span<const int64_t> shape = tensor.shape;
  const bool per_matrix =
      request.count && !shape.empty() && shape[0] == *request.count;
  if (per_matrix) shape.remove_prefix(1);
  std::optional<ScaleAxes> axes;
  // Several matrices may share a single scale, but nothing else.
  if (!request.count || per_matrix || tensor.elements() == 1) {
    axes = ScaleAxesOf(shape, matrix.rows, matrix.cols,
                       request.checkpoint.quantization());
  }
  if (!axes) {
    const Quantization& block = request.checkpoint.quantization();
    const auto want = [&](std::vector<int64_t> each) {
      return ShapeText(request.Stacked(std::move(each)));
    };
    return absl::InvalidArgumentError(
        absl::StrCat(request.checkpoint.Where(tensor), ": want one scale, ",
                     want({matrix.rows}), ", ", want({matrix.rows, 1}), ", ",
                     want({1, matrix.cols}), ", ", want({matrix.rows, -1}),
                     " with equal groups, or ",
                     want({CeilDiv(matrix.rows, block.block_rows),
                           CeilDiv(matrix.cols, block.block_cols)}),
                     ", got ", tensor.TypeText()));
  }
  matrix.scales = tensor.bytes.data();
  matrix.scale_dtype = *tensor.dtype;
  matrix.scale_rows = axes->rows;
  matrix.scale_cols = axes->cols;
  const auto bytes = static_cast<int64_t>(tensor.bytes.size());
  stack.scale_step = per_matrix ? bytes / stack.count : 0;
  return absl::OkStatus();
}

// F8_E4M3, or unquantised.
absl::StatusOr<StoredStack> OpenBytes(const Request& request) {
  const bool turned = request.order == StoredOrder::kInOut;
  const int64_t rows = turned ? request.cols : request.rows;
  const int64_t cols = turned ? request.rows : request.cols;
  const TensorInfo* found = request.checkpoint.Find(request.name);
  const bool scaled = found != nullptr && found->dtype == DType::kF8E4M3;
  constexpr DType kScaled[] = {DType::kF8E4M3};
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* tensor,
      request.checkpoint.Require(request.name,
                                 scaled ? absl::MakeConstSpan(kScaled)
                                        : absl::MakeConstSpan(kFloatDTypes),
                                 request.Stacked({rows, cols})));
  StoredStack stack = Contiguous(request, rows, cols, *tensor);
  if (scaled) {
    stack.first.coding = StoredCoding::kScaled;
    const TensorInfo* scale = request.FindScale();
    if (scale == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          request.checkpoint.Where(*tensor), ": is F8_E4M3, but neither ",
          Quote(absl::StrCat(request.name, "_scale_inv")), " nor ",
          Quote(absl::StrCat(request.name, "_scale")), " is there"));
    }
    MOE_RETURN_IF_ERROR(AddScales(request, *scale, stack));
  }
  if (turned) stack.first = stack.first.Transposed();
  return stack;
}

// MXFP4: `data` has 16 bytes and `scale` has one for 32 columns.
StoredStack Mxfp4(const Request& request, const TensorInfo& data,
                  const TensorInfo& scale, int64_t row_bytes) {
  StoredStack stack = Contiguous(request, request.rows, request.cols, data);
  StoredMatrix& matrix = stack.first;
  matrix.coding = StoredCoding::kMxfp4;
  matrix.row_stride = row_bytes * 2;
  matrix.scales = scale.bytes.data();
  matrix.scale_dtype = DType::kF8E8M0;
  matrix.scale_rows.stride = CeilDiv(request.cols, kMxfp4Group);
  matrix.scale_cols = {.block = kMxfp4Group, .stride = 1};
  const auto bytes = static_cast<int64_t>(scale.bytes.size());
  stack.scale_step = bytes / stack.count;
  return stack;
}

// gpt-oss: *_blocks and *_scales.
absl::StatusOr<StoredStack> OpenMxfp4Blocks(const Request& request,
                                            const TensorInfo& blocks) {
  const int64_t groups = CeilDiv(request.cols, kMxfp4Group);
  const std::string scales =
      absl::StrCat(absl::StripSuffix(blocks.name, "blocks"), "scales");
  MOE_RETURN_IF_ERROR(
      request.checkpoint
          .Require(blocks.name, {DType::kU8},
                   request.Stacked({request.rows, groups, kMxfp4Group / 2}))
          .status());
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* scale,
      request.checkpoint.Require(scales, {DType::kU8},
                                 request.Stacked({request.rows, groups})));
  return Mxfp4(request, blocks, *scale, groups * kMxfp4Group / 2);
}

// DeepSeek-V4: two elements per I8, and a scale.
absl::StatusOr<StoredStack> OpenMxfp4Bytes(const Request& request,
                                           const TensorInfo& tensor) {
  const TensorInfo* scale = request.FindScale();
  if (scale == nullptr) {
    return request.Unsupported(
        tensor, absl::StrCat(tensor.dtype_name, " without a scale tensor"));
  }
  const int64_t row_bytes = CeilDiv(request.cols, 2);
  MOE_RETURN_IF_ERROR(request.checkpoint
                          .Require(tensor.name, {DType::kI8, DType::kU8},
                                   request.Stacked({request.rows, row_bytes}))
                          .status());
  MOE_RETURN_IF_ERROR(
      request.checkpoint
          .Require(scale->name, {DType::kF8E8M0},
                   request.Stacked(
                       {request.rows, CeilDiv(request.cols, kMxfp4Group)}))
          .status());
  return Mxfp4(request, tensor, *scale, row_bytes);
}

// Activation order permutes the groups: `indices` must say that it did not
// happen.
absl::Status CheckGroupOrder(const Request& request, const std::string& name,
                             int64_t group) {
  if (!request.checkpoint.Contains(name)) return absl::OkStatus();
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* indices,
      request.checkpoint.Require(name, {DType::kI32}, {request.cols}));
  for (int64_t i = 0; i < request.cols; ++i) {
    if (LoadUnaligned<int32_t>(indices->bytes.data() + i * 4) != i / group) {
      return request.Unsupported(*indices, "activation order (desc_act)");
    }
  }
  return absl::OkStatus();
}

// Gives `matrix` the zero points in `tensor`, unless each is the middle, which
// goes without saying. Requires: all else is set.
void SetZeroPoints(const TensorInfo& tensor, StoredMatrix& matrix) {
  matrix.zeros = tensor.bytes.data();
  const uint32_t middle = 8 * kOneInEachNibble - matrix.zero_offset;
  bool symmetric = true;
  for (int64_t i = 0; symmetric && i < tensor.elements(); ++i) {
    symmetric = LoadUnaligned<uint32_t>(matrix.zeros + i * 4) == middle;
  }
  if (!symmetric) {
    // Perhaps it was no more than the padding.
    symmetric = true;
    for (int64_t col = 0; symmetric && col < matrix.cols;
         col += matrix.scale_cols.block) {
      for (int64_t row = 0; symmetric && row < matrix.rows; ++row) {
        symmetric = matrix.ZeroPoint(row, col) == 8;
      }
    }
  }
  if (symmetric) matrix.zeros = nullptr;
}

// compressed-tensors: the tensor is *_packed.
absl::StatusOr<StoredMatrix> OpenInt4Packed(const Request& request,
                                            const TensorInfo& packed) {
  const auto sibling = [&](absl::string_view suffix) {
    return absl::StrCat(request.name, suffix);
  };
  const auto& checkpoint = request.checkpoint;
  const int64_t words = CeilDiv(request.cols, kNibblesPerI32);
  for (const int64_t bits : {2, 3, 8}) {
    const std::vector<int64_t> other = {request.rows,
                                        CeilDiv(request.cols * bits, 32)};
    if (other[1] != words && packed.shape == other) {
      return request.Unsupported(
          packed, absl::StrCat("compressed-tensors with ", bits, " bits"));
    }
  }
  MOE_RETURN_IF_ERROR(
      checkpoint.Require(packed.name, {DType::kI32}, {request.rows, words})
          .status());
  if (checkpoint.Contains(sibling("_shape"))) {
    MOE_ASSIGN_OR_RETURN(
        const TensorInfo* shape,
        checkpoint.Require(sibling("_shape"), {DType::kI64, DType::kI32}, {2}));
    const auto extent = [&](int64_t i) {
      const uint8_t* at = shape->bytes.data() + i * DTypeBytes(*shape->dtype);
      return *shape->dtype == DType::kI64 ? LoadUnaligned<int64_t>(at)
                                          : LoadUnaligned<int32_t>(at);
    };
    if (extent(0) != request.rows || extent(1) != request.cols) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.Where(*shape), ": want ",
                       ShapeText({request.rows, request.cols}), ", got ",
                       ShapeText({extent(0), extent(1)})));
    }
  }
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* scale,
      checkpoint.Require(sibling("_scale"), kScaleDTypes, {request.rows, -1}));
  const int64_t groups = scale->shape[1];
  if (groups < 1 || request.cols % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.Where(*scale), ": want groups that divide ",
                     request.cols, " columns, got ", scale->TypeText()));
  }
  const int64_t group = request.cols / groups;
  MOE_RETURN_IF_ERROR(CheckGroupOrder(request, sibling("_g_idx"), group));

  StoredMatrix matrix;
  matrix.rows = request.rows;
  matrix.cols = request.cols;
  matrix.coding = StoredCoding::kInt4;
  matrix.data = packed.bytes.data();
  matrix.row_stride = words * kNibblesPerI32;
  matrix.scales = scale->bytes.data();
  matrix.scale_dtype = *scale->dtype;
  matrix.scale_rows.stride = groups;
  matrix.scale_cols = {.block = group, .stride = 1};
  if (checkpoint.Contains(sibling("_zero_point"))) {
    MOE_ASSIGN_OR_RETURN(
        const TensorInfo* zeros,
        checkpoint.Require(sibling("_zero_point"), {DType::kI32},
                           {CeilDiv(request.rows, kNibblesPerI32), groups}));
    matrix.zero_row_stride = groups;
    matrix.zero_col_stride = 1;
    SetZeroPoints(*zeros, matrix);
  }
  return matrix;
}

// Whether `qweight` is packed as AWQ does it, by rows, or as GPTQ does, by
// columns; where the config does not say which it is, the shape does.
// Errors: UNIMPLEMENTED for other versions and other numbers of bits; those of
// Require.
absl::StatusOr<bool> IsAwq(const Request& request, const TensorInfo& qweight) {
  const Quantization& quantization = request.checkpoint.quantization();
  const int64_t rows = request.rows;
  const int64_t cols = request.cols;
  using Shape = std::vector<int64_t>;
  const bool awq =
      quantization.method == "awq" ||
      (rows % kNibblesPerI32 == 0 &&
       qweight.shape == Shape{cols, CeilDiv(rows, kNibblesPerI32)});
  if (awq && quantization.awq_version != "gemm") {
    return request.Unsupported(
        qweight,
        absl::StrCat("AWQ of version ", Quote(quantization.awq_version)));
  }
  const auto shape_of = [&](int64_t bits) {
    return awq ? Shape{cols, CeilDiv(rows * bits, 32)}
               : Shape{CeilDiv(cols * bits, 32), rows};
  };
  for (const int64_t bits : {2, 3, 8}) {
    if (qweight.shape != shape_of(4) && qweight.shape == shape_of(bits)) {
      return request.Unsupported(
          qweight, absl::StrCat(awq ? "AWQ" : "GPTQ", " with ", bits, " bits"));
    }
  }
  MOE_RETURN_IF_ERROR(
      request.checkpoint.Require(qweight.name, {DType::kI32}, shape_of(4))
          .status());
  return awq;
}

// How many columns share one of the scales [groups, rows].
absl::StatusOr<int64_t> GroupOf(const Request& request,
                                const TensorInfo& scale) {
  const int64_t cols = request.cols;
  const int64_t groups = scale.shape[0];
  const std::optional<int64_t> configured =
      request.checkpoint.quantization().group_size;
  const int64_t group = configured.value_or(groups > 0 ? cols / groups : cols);
  if (group < 1 || groups != CeilDiv(cols, group)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.checkpoint.Where(scale), ": want groups of ",
                     configured ? absl::StrCat(*configured) : "equal size",
                     " for ", cols, " columns, got ", scale.TypeText()));
  }
  return group;
}

// GPTQ and AWQ: qweight, scales, qzeros and perhaps g_idx.
absl::StatusOr<StoredMatrix> OpenQweight(const Request& request,
                                         const TensorInfo& qweight) {
  const auto& checkpoint = request.checkpoint;
  const Quantization& quantization = checkpoint.quantization();
  const auto sibling = [&](absl::string_view name) {
    return absl::StrCat(request.stem(), ".", name);
  };
  const int64_t rows = request.rows;
  const int64_t row_words = CeilDiv(rows, kNibblesPerI32);
  MOE_ASSIGN_OR_RETURN(const bool awq, IsAwq(request, qweight));
  MOE_ASSIGN_OR_RETURN(
      const TensorInfo* scale,
      checkpoint.Require(sibling("scales"), kScaleDTypes, {-1, rows}));
  MOE_ASSIGN_OR_RETURN(const int64_t group, GroupOf(request, *scale));
  // Some writers leave out zero points that go without saying.
  const TensorInfo* zeros = checkpoint.Find(sibling("qzeros"));
  const bool implied =
      zeros != nullptr && zeros->elements() == 0 && quantization.symmetric;
  if (!implied) {
    MOE_ASSIGN_OR_RETURN(zeros,
                         checkpoint.Require(sibling("qzeros"), {DType::kI32},
                                            {scale->shape[0], row_words}));
  }
  MOE_RETURN_IF_ERROR(CheckGroupOrder(request, sibling("g_idx"), group));

  StoredMatrix matrix;
  matrix.rows = rows;
  matrix.cols = request.cols;
  matrix.coding = StoredCoding::kInt4;
  matrix.packing = awq ? NibblePacking::kRowWords : NibblePacking::kColumnWords;
  matrix.data = qweight.bytes.data();
  matrix.row_stride = kNibblesPerI32;
  matrix.col_stride = (awq ? row_words : rows) * kNibblesPerI32;
  matrix.scales = scale->bytes.data();
  matrix.scale_dtype = *scale->dtype;
  matrix.scale_rows.stride = 1;
  matrix.scale_cols = {.block = group, .stride = rows};
  if (implied) return matrix;
  matrix.zero_row_stride = 1;
  matrix.zero_col_stride = row_words;
  const std::optional<int> offset = awq ? 0 : quantization.gptq_zero_offset();
  matrix.zero_offset = offset == 0 ? 0 : kOneInEachNibble;
  SetZeroPoints(*zeros, matrix);
  if (!offset && matrix.has_zero_points()) {
    return request.Unsupported(
        *zeros, absl::StrCat("GPTQ with zero points in the format ",
                             Quote(quantization.gptq_format)));
  }
  return matrix;
}

absl::StatusOr<StoredStack> Open(const Request& request) {
  if (request.count.value_or(1) < 1 || request.rows < 1 || request.cols < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quote(request.name), ": want extents >= 1, asked for ",
        ShapeText(request.Stacked({request.rows, request.cols}))));
  }
  for (const std::string& name :
       {std::string(request.name), absl::StrCat(request.name, "_blocks"),
        absl::StrCat(request.name, ".blocks"),
        absl::StrCat(request.name, "_packed"),
        absl::StrCat(request.stem(), ".qweight")}) {
    MOE_RETURN_IF_ERROR(request.checkpoint.CheckPresent(name));
  }
  if (const TensorInfo* blocks =
          request.FindAny({absl::StrCat(request.name, "_blocks"),
                           absl::StrCat(request.name, ".blocks")})) {
    return OpenMxfp4Blocks(request, *blocks);
  }
  const TensorInfo* packed =
      request.FindAny({absl::StrCat(request.name, "_packed")});
  const TensorInfo* qweight =
      request.FindAny({absl::StrCat(request.stem(), ".qweight")});
  if (packed != nullptr || qweight != nullptr) {
    const TensorInfo& tensor = packed != nullptr ? *packed : *qweight;
    if (request.count) {
      return request.Unsupported(tensor, "int4 of several experts in one");
    }
    MOE_ASSIGN_OR_RETURN(StoredMatrix matrix,
                         packed != nullptr ? OpenInt4Packed(request, tensor)
                                           : OpenQweight(request, tensor));
    return StoredStack{.first = matrix, .count = 1};
  }
  const TensorInfo* tensor = request.checkpoint.Find(request.name);
  if (tensor != nullptr &&
      (tensor->dtype == DType::kI8 || tensor->dtype == DType::kU8)) {
    return OpenMxfp4Bytes(request, *tensor);
  }
  return OpenBytes(request);
}

}  // namespace

std::vector<std::string> TensorsOf(const Checkpoint& checkpoint,
                                   absl::string_view name) {
  const absl::string_view stem = absl::StripSuffix(name, ".weight");
  const auto all = [](absl::string_view of,
                      std::initializer_list<absl::string_view> suffixes) {
    std::vector<std::string> names;
    for (const absl::string_view suffix : suffixes) {
      names.push_back(absl::StrCat(of, suffix));
    }
    return names;
  };
  const auto has = [&](absl::string_view of, absl::string_view suffix) {
    return checkpoint.Contains(absl::StrCat(of, suffix));
  };
  if (has(name, "_blocks")) return all(name, {"_blocks", "_scales"});
  if (has(name, ".blocks")) return all(name, {".blocks", ".scales"});
  if (has(name, "_packed")) {
    return all(name, {"_packed", "_scale", "_shape", "_zero_point", "_g_idx"});
  }
  if (has(stem, ".qweight")) {
    return all(stem, {".qweight", ".scales", ".qzeros", ".g_idx"});
  }
  std::vector<std::string> names = {std::string(name)};
  const TensorInfo* tensor = checkpoint.Find(name);
  const bool plain = tensor != nullptr && tensor->dtype &&
                     std::find(std::begin(kFloatDTypes), std::end(kFloatDTypes),
                               *tensor->dtype) != std::end(kFloatDTypes);
  // As FindScale.
  for (std::string& scale : std::vector<std::string>{
           absl::StrCat(name, "_scale_inv"), absl::StrCat(name, "_scale"),
           absl::StrCat(stem, ".scale")}) {
    if (plain || !checkpoint.Contains(scale)) continue;
    names.push_back(std::move(scale));
    break;
  }
  return names;
}

absl::StatusOr<StoredMatrix> OpenMatrix(const Checkpoint& checkpoint,
                                        absl::string_view name, int64_t rows,
                                        int64_t cols, StoredOrder order) {
  MOE_ASSIGN_OR_RETURN(
      const StoredStack stack,
      Open({checkpoint, name, std::nullopt, rows, cols, order}));
  return stack.first;
}

absl::StatusOr<StoredStack> OpenStack(const Checkpoint& checkpoint,
                                      absl::string_view name, int64_t count,
                                      int64_t rows, int64_t cols,
                                      StoredOrder order) {
  return Open({checkpoint, name, count, rows, cols, order});
}

StoredMatrix StoredStack::operator[](int64_t index) const {
  MOE_CHECK(index >= 0 && index < count);
  StoredMatrix matrix = first;
  matrix.data += index * data_step;
  if (matrix.scales != nullptr) matrix.scales += index * scale_step;
  return matrix;
}

absl::StatusOr<std::vector<float>> ReadVector(const Checkpoint& checkpoint,
                                              absl::string_view name,
                                              int64_t size) {
  MOE_RETURN_IF_ERROR(checkpoint.CheckPresent(name));
  const TensorInfo* found = checkpoint.Find(name);
  std::vector<int64_t> shape = {size};
  if (found != nullptr && found->shape.size() == 2) {
    shape.insert(found->shape[0] == 1 ? shape.begin() : shape.end(), 1);
  }
  MOE_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                       checkpoint.Require(name, kFloatDTypes, shape));
  StoredMatrix row;
  row.rows = 1;
  row.cols = size;
  row.dtype = *tensor->dtype;
  row.data = tensor->bytes.data();
  std::vector<float> values(static_cast<size_t>(size));
  row.Read(0, 0, absl::MakeSpan(values));
  return values;
}

void DropPages(const Checkpoint& checkpoint, const StoredMatrix& matrix) {
  checkpoint.DropPages(matrix.DataExtent());
  checkpoint.DropPages(matrix.ScaleExtent());
  checkpoint.DropPages(matrix.ZeroExtent());
}

}  // namespace moe

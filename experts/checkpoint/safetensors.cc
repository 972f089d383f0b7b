#include "experts/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/json.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
// The limit of the format's reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr char kMetadataKey[] = "__metadata__";

constexpr std::array kDTypes = {
    DType::kF32,    DType::kBF16,   DType::kF16, DType::kF8E4M3,
    DType::kF8E5M2, DType::kF8E8M0, DType::kF64, DType::kI64,
    DType::kI32,    DType::kI16,    DType::kI8,  DType::kU64,
    DType::kU32,    DType::kU16,    DType::kU8,  DType::kBool};

std::optional<DType> DTypeOf(absl::string_view name) {
  for (const DType dtype : kDTypes) {
    const auto known = DTypeName(dtype);
    if (name == absl::string_view(known.data(), known.size())) return dtype;
  }
  return std::nullopt;
}

// The product of `shape` times `factor`, or nothing if it exceeds int64.
std::optional<int64_t> Product(absl::Span<const int64_t> shape,
                               int64_t factor) {
  int64_t product = factor;
  // A zero anywhere makes the product zero, whatever the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return product;
}

// A JSON array of integers >= 0.
std::optional<std::vector<int64_t>> Counts(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> counts;
  for (const Json& item : json) {
    // The parser stores every integer without a sign as unsigned.
    if (!item.is_number_unsigned()) return std::nullopt;
    const auto value = item.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return std::nullopt;
    }
    counts.push_back(static_cast<int64_t>(value));
  }
  return counts;
}

absl::Status Damaged(absl::string_view file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file, ": ", what));
}

// One entry of the header. `data` is the file's data section.
absl::StatusOr<TensorInfo> ParseTensor(absl::string_view file,
                                       const std::string& name,
                                       const Json& json,
                                       absl::Span<const uint8_t> data) {
  const auto damaged = [&](const auto&... what) {
    return Damaged(file, absl::StrCat("tensor ", Quote(name), ": ", what...));
  };
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return damaged("want an object of dtype, shape and data_offsets");
  }
  if (!json["dtype"].is_string()) return damaged("dtype: want a string");
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype_name = json["dtype"].get<std::string>();
  tensor.dtype = DTypeOf(tensor.dtype_name);

  auto shape = Counts(json["shape"]);
  if (!shape) return damaged("shape: want an array of integers >= 0");
  tensor.shape = *std::move(shape);

  const auto offsets = Counts(json["data_offsets"]);
  if (!offsets || offsets->size() != 2) {
    return damaged("data_offsets: want two integers >= 0");
  }
  const auto begin = static_cast<uint64_t>((*offsets)[0]);
  const auto end = static_cast<uint64_t>((*offsets)[1]);
  if (begin > end || end > data.size()) {
    return damaged("data_offsets: want begin <= end <= ", data.size(),
                   ", got [", begin, ", ", end, "]");
  }
  tensor.bytes = data.subspan(begin, end - begin);

  const int64_t element = tensor.dtype ? DTypeBytes(*tensor.dtype) : 1;
  const auto want = Product(tensor.shape, element);
  if (!want) {
    return damaged("shape ", ShapeText(tensor.shape), ": too large");
  }
  if (tensor.dtype && *want != static_cast<int64_t>(tensor.bytes.size())) {
    return damaged("shape ", ShapeText(tensor.shape), " of ", tensor.dtype_name,
                   " wants ", *want, " bytes, got ", tensor.bytes.size());
  }
  return tensor;
}

absl::StatusOr<SafetensorsMetadata> ParseMetadata(absl::string_view file,
                                                  const Json& json) {
  SafetensorsMetadata metadata;
  if (json.is_null()) return metadata;
  if (!json.is_object()) {
    return Damaged(file, "__metadata__: want an object of strings");
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Damaged(
          file, absl::StrCat("__metadata__: ", Quote(key), ": want a string"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// The data must be covered without overlap or hole; `tensors` are in the order
// of their data.
absl::Status CheckCover(absl::string_view file,
                        absl::Span<const TensorInfo> tensors,
                        absl::Span<const uint8_t> data) {
  const uint8_t* end = data.data();
  for (const TensorInfo& tensor : tensors) {
    if (tensor.bytes.data() != end) {
      return Damaged(
          file, absl::StrCat("tensor ", Quote(tensor.name),
                             ": data_offsets: want begin ", end - data.data(),
                             ", where the tensor before it ends, got ",
                             tensor.bytes.data() - data.data()));
    }
    end += tensor.bytes.size();
  }
  if (end != data.data() + data.size()) {
    return Damaged(file,
                   absl::StrCat("the tensors end at byte ", end - data.data(),
                                " of the data, of ", data.size()));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TensorInfo::elements() const {
  const auto product = Product(shape, 1);
  MOE_CHECK(product.has_value());
  return *product;
}

std::string TensorInfo::TypeText() const {
  return absl::StrCat(
      dtype ? dtype_name : absl::StrCat("dtype ", Quote(dtype_name)), " ",
      ShapeText(shape));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::Span<const uint8_t> file, absl::string_view name) {
  const absl::string_view text(reinterpret_cast<const char*>(file.data()),
                               file.size());
  if (absl::StartsWith(text, "version https://git-lfs")) {
    return Damaged(name,
                   "is a git-lfs pointer, not the weights; run git lfs pull");
  }
  if (file.size() < kLengthBytes) {
    return Damaged(name, absl::StrCat("want at least ", kLengthBytes,
                                      " bytes, got ", file.size()));
  }
  const auto length = LoadUnaligned<uint64_t>(file.data());
  const uint64_t limit =
      std::min<uint64_t>(kMaxHeaderBytes, file.size() - kLengthBytes);
  if (length > limit) {
    return Damaged(name, absl::StrCat("header: want at most ", limit,
                                      " bytes, got a length of ", length));
  }
  const auto data = file.subspan(kLengthBytes + length);
  MOE_ASSIGN_OR_RETURN(const Json json,
                       ParseJson(text.substr(kLengthBytes, length),
                                 absl::StrCat(name, ": header")));
  if (!json.is_object()) return Damaged(name, "header: want a JSON object");

  SafetensorsHeader header;
  for (const auto& [key, value] : json.items()) {
    if (key == kMetadataKey) {
      MOE_ASSIGN_OR_RETURN(header.metadata, ParseMetadata(name, value));
    } else {
      MOE_ASSIGN_OR_RETURN(TensorInfo tensor,
                           ParseTensor(name, key, value, data));
      header.tensors.push_back(std::move(tensor));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              // Empty tensors go before the one that starts where they are.
              return std::make_pair(a.bytes.data(), a.bytes.size()) <
                     std::make_pair(b.bytes.data(), b.bytes.size());
            });
  MOE_RETURN_IF_ERROR(CheckCover(name, header.tensors, data));
  return header;
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {
  by_name_.reserve(header_.tensors.size());
  for (const TensorInfo& tensor : header_.tensors) {
    by_name_.emplace(tensor.name, &tensor);
  }
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  MOE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  MOE_ASSIGN_OR_RETURN(SafetensorsHeader header,
                       ParseSafetensorsHeader(file.bytes(), file.name()));
  return SafetensorsFile(std::move(file), std::move(header));
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

namespace {

absl::Status CheckTensors(absl::Span<const TensorToWrite> tensors) {
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorToWrite& tensor : tensors) {
    const auto invalid = [&](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quote(tensor.name), ": ", what...));
    };
    if (tensor.name == kMetadataKey) return invalid("the name is reserved");
    if (!names.insert(tensor.name).second) return invalid("appears twice");
    const auto want = Product(tensor.shape, DTypeBytes(tensor.dtype));
    if (!want || *want != static_cast<int64_t>(tensor.bytes.size())) {
      return invalid("shape ", ShapeText(tensor.shape), " wants ",
                     want ? absl::StrCat(*want) : "too many", " bytes, got ",
                     tensor.bytes.size());
    }
  }
  return absl::OkStatus();
}

// The length and the JSON, padded with spaces so that the data are aligned.
std::string HeaderText(absl::Span<const TensorToWrite* const> tensors,
                       const SafetensorsMetadata& metadata) {
  auto json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[kMetadataKey] = metadata;
  size_t begin = 0;
  for (const TensorToWrite* tensor : tensors) {
    const size_t end = begin + tensor->bytes.size();
    json[tensor->name] = {{"dtype", std::string(DTypeName(tensor->dtype))},
                          {"shape", tensor->shape},
                          {"data_offsets", {begin, end}}};
    begin = end;
  }
  // Names that are not UTF-8 get replacement characters; the strict mode would
  // throw.
  std::string text = json.dump(
      /*indent=*/-1, /*indent_char=*/' ',
      /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof(length));
  return header + text;
}

}  // namespace

absl::StatusOr<SafetensorsParts> LayOutSafetensors(
    absl::Span<const TensorToWrite> tensors,
    const SafetensorsMetadata& metadata) {
  MOE_RETURN_IF_ERROR(CheckTensors(tensors));
  std::vector<const TensorToWrite*> ordered;
  for (const TensorToWrite& tensor : tensors) ordered.push_back(&tensor);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const TensorToWrite* a, const TensorToWrite* b) {
                     return DTypeBytes(a->dtype) > DTypeBytes(b->dtype);
                   });
  SafetensorsParts parts{.header = HeaderText(ordered, metadata), .data = {}};
  for (const TensorToWrite* tensor : ordered) {
    parts.data.push_back(tensor->bytes);
  }
  return parts;
}

}  // namespace moe

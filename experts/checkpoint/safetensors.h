// The safetensors format: named tensors in one file.
//
//   8 bytes    length n of the header, little-endian
//   n bytes    JSON: {"NAME": {"dtype", "shape", "data_offsets": [begin, end]},
//              ..., "__metadata__": {"KEY": "TEXT", ...}}
//   the rest   tensor data, row-major, little-endian; offsets count from here
//
// Thread-safe once opened.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/base/dtype.h"
#include "experts/checkpoint/mapped_file.h"

namespace moe {

using SafetensorsMetadata = std::map<std::string, std::string>;

// One tensor of a file; a plain value but for `bytes`.
struct TensorInfo {
  std::string name;
  std::string dtype_name;      // as the file has it
  std::optional<DType> dtype;  // absent: a type that this project doesn't know
  std::vector<int64_t> shape;  // [] is a scalar
  absl::Span<const uint8_t> bytes;  // the data, of any alignment; belongs to
                                    // the file's mapping

  // Product of the shape; it fits by construction.
  int64_t elements() const;
  // "BF16 [8, 64]", for messages.
  std::string TypeText() const;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data
  SafetensorsMetadata metadata;
};

// Parses the header at the start of `file`, the bytes of a whole file, and
// checks everything about it: no byte of tensor data is read, and no offset in
// the result leads out of `file`. `name` is the file's name for messages.
//
// A tensor of an unknown dtype is listed like any other (its byte count can't
// be checked): it must not keep a model from loading which doesn't need it.
//
// Errors: DATA_LOSS naming file, tensor, wanted and got. Overlapping tensors
// and bytes that belong to no tensor are errors, as the format demands.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::Span<const uint8_t> file, absl::string_view name);

class SafetensorsFile {
 public:
  // Maps the file and reads its header, nothing else.
  //
  // Errors: those of MappedFile::Open and ParseSafetensorsHeader.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& name() const { return file_.name(); }
  const MappedFile& file() const { return file_; }
  // In the order of their data. The addresses stay when the object moves.
  absl::Span<const TensorInfo> tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }

  // Null if there is none of that name.
  const TensorInfo* Find(absl::string_view name) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);

  MappedFile file_;
  SafetensorsHeader header_;
  absl::flat_hash_map<absl::string_view, const TensorInfo*> by_name_;
};

// A tensor to be written; `bytes` belong to the caller.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> bytes;
};

// The bytes of an array of plain values.
template <typename T>
absl::Span<const uint8_t> AsBytes(absl::Span<const T> values) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()),
                             values.size() * sizeof(T));
}

// What a file consists of, one after another.
struct SafetensorsParts {
  std::string header;
  std::vector<absl::Span<const uint8_t>> data;  // the tensors' bytes
};

// The file that holds `tensors`. Tensors of wider elements go first, so that
// every one is aligned to its element.
//
// Errors: INVALID_ARGUMENT for a name that is taken or reserved, or a byte
// count that doesn't fit the shape.
absl::StatusOr<SafetensorsParts> LayOutSafetensors(
    absl::Span<const TensorToWrite> tensors,
    const SafetensorsMetadata& metadata = {});

}  // namespace moe
